"""The table of `fastmax-lab bench kernel --device cuda`: time and pace, beside the GPU's data sheet and softmax attention."""

from typing import Any

from fastmax_lab import _roofline
from fastmax_lab._cells import Cell
from fastmax_lab.report.table import milliseconds, table, times


def summary(measured: dict[str, Any]) -> str:
    gpu = _roofline.known(measured["gpu"])
    header = ["N, D, order", "pass", "triton", "TFLOP/s", "GB/s", "of roofline", "vs sdpa", "vs chunked", "first call"]
    rows = [_row(cell, gpu) for cell in measured["cells"]]
    sheet = "" if gpu is None else f" Data sheet: {gpu.tflops:g} TFLOP/s in bf16, {gpu.gigabytes_per_second:g} GB/s."
    text = f"{measured['gpu']}, {measured['triton']}.{sheet} Causal, median of the rounds, caches flushed."
    return "\n\n".join([text, table(header, rows)])


def _row(measured: dict[str, Any], gpu: _roofline.Gpu | None) -> list[str]:
    cell = Cell(**{name: measured[name] for name in Cell.__dataclass_fields__})
    taken = measured["seconds"]
    own = taken["triton"]
    share = "-" if gpu is None else f"{_roofline.least_seconds(cell, gpu) / own:.2f}"
    return [
        f"{cell.tokens:,}, {cell.head_dim}, {cell.order} {cell.dtype}",
        "forward + backward" if cell.backward else "forward",
        milliseconds(own),
        f"{_roofline.flops(cell) / own / 1e12:.1f}",
        f"{_roofline.moved(cell) / own / 1e9:.0f}",
        share,
        times(taken["sdpa"] / own),
        times(taken["chunked"] / own),
        f"{measured['first_call']:.1f} s",
    ]
