"""Table of `fastmax-lab bench gpu-estimate`: what counts of launches, bytes and flops amount to on some GPUs."""

from collections.abc import Sequence

from fastmax_lab import _roofline
from fastmax_lab._cells import Cell
from fastmax_lab.measurements import Measurement
from fastmax_lab.report.table import milliseconds, table, times

ABOUT = (
    "ESTIMATES, not measurements: plain PyTorch, causal, bf16, {heads} heads of {head_dim} channels. {launch:g} us a "
    "launch, {memory:.0%} of the memory's bandwidth, {peak:.0%} of the peak of matrix products, added up. "
    "FlashAttention has its published pace, and FlexAttention {flex:.0%} of it."
)
GPUS = ("A100", "H100", "MI300X", "RTX 4090")


def summary(measured: Sequence[Measurement]) -> str:
    cells = [Cell.of(one.settings) for one in measured]
    header = ["N, order, pass", "launches", "GB", *GPUS, "FA-2, A100", "over FA-2", "FA-3, H100", "over FA-3"]
    rows = []
    for cell, one in zip(cells, measured, strict=True):
        taken = {name: _roofline.estimate(one.values, cell, name) for name in GPUS}
        flex = ", flex" if one.values["flex_forward"] else ""
        row = [f"{cell.tokens:,}, {cell.order}, {'both' if cell.backward else 'forward'}{flex}"]
        row += [f"{one.values['launches']:,}", f"{one.values['bytes'] / 1e9:.1f}", *map(milliseconds, taken.values())]
        for gpu in ("A100", "H100"):
            flash = _roofline.flash_seconds(cell, gpu)
            row += [milliseconds(flash), times(_over(taken[gpu], flash))]
        rows.append(row)
    about = ABOUT.format(
        heads=cells[0].heads,
        head_dim=cells[0].head_dim,
        launch=_roofline.LAUNCH * 1e6,
        memory=_roofline.MEMORY_SHARE,
        flex=_roofline.FLEX_SHARE,
        peak=_roofline.PEAK_SHARE,
    )
    return f"{about}\n\n{table(header, rows)}"


def _over(taken: float | None, flash: float | None) -> float | None:
    return None if taken is None or flash is None else taken / flash
