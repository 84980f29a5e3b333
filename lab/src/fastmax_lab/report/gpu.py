"""The table of `fastmax-lab bench kernel --device cuda`: time and pace, beside the GPU's data sheet and softmax attention."""

from collections.abc import Sequence

from fastmax_lab import _roofline
from fastmax_lab._cells import Cell
from fastmax_lab.measurements import Measurement
from fastmax_lab.report.table import milliseconds, passes, table, times


def summary(measured: Sequence[Measurement]) -> str:
    made_on = measured[0].settings
    gpu = _roofline.known(made_on["gpu"])
    header = ["N, D, order", "pass", "triton", "TFLOP/s", "GB/s", "of roofline", "vs sdpa", "vs chunked", "first call"]
    rows = [_row(cell, gpu) for cell in measured]
    sheet = "" if gpu is None else f" Data sheet: {gpu.tflops:g} TFLOP/s in bf16, {gpu.gigabytes_per_second:g} GB/s."
    text = f"{made_on['gpu']}, {made_on['triton']}.{sheet} Causal, median of the rounds, caches flushed."
    return "\n\n".join([text, table(header, rows)])


def _row(measured: Measurement, gpu: _roofline.Gpu | None) -> list[str]:
    cell = Cell.of(measured.settings)
    taken = measured.values["seconds"]
    own = taken["triton"]
    share = "-" if gpu is None else f"{_roofline.least_seconds(cell, gpu) / own:.2f}"
    return [
        f"{cell.tokens:,}, {cell.head_dim}, {cell.order} {cell.dtype}",
        passes(cell.backward),
        milliseconds(own),
        f"{_roofline.flops(cell) / own / 1e12:.1f}",
        f"{_roofline.moved(cell) / own / 1e9:.0f}",
        share,
        times(taken["sdpa"] / own),
        times(taken["chunked"] / own),
        f"{measured.values['first_call']:.1f} s",
    ]
