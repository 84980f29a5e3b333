"""`fastmax-lab bench gpu-estimate`: counted launches, bytes and flops of plain PyTorch, for estimates. Measures nothing."""

from dataclasses import asdict

import torch

from fastmax_lab._cells import Cell
from fastmax_lab._progress import Progress
from fastmax_lab.bench.launches import Launches, count
from fastmax_lab.measurements import Recorder

TOKENS = (1024, 4096, 16384, 65536)


def run(record: Recorder, quick: bool) -> None:
    """Record causal bf16 calls of 16 heads with 64 channels, forward and forward + backward."""
    cells = [
        Cell(tokens, 64, order, is_causal=True, backward=backward, dtype="bfloat16", heads=16)
        for order in ((2,) if quick else (2, 1))
        for tokens in TOKENS[: 2 if quick else None]
        for backward in (False, True)
    ]
    with Progress(len(cells)) as bar:
        for cell in cells:
            bar.step(f"N = {cell.tokens:,}, order {cell.order}")
            for with_flex in (False, True):
                found = count(cell.tokens, order=cell.order, backward=cell.backward, with_flex=with_flex)
                if with_flex and not found.flex:
                    continue  # the rule prefers the factorized form
                name = f"{cell.name}-flex" if with_flex else cell.name
                record.add(name, asdict(cell), values_of(found))


def values_of(found: Launches) -> dict[str, int]:
    """Return counts as they are recorded."""
    half = sum(n for dtype, n in found.flops.items() if dtype.itemsize == 2)
    values = {"launches": found.total, "bytes": found.bytes, "half_flops": half}
    values["fp32_flops"] = found.flops[torch.float32]
    return values | {f"flex_{name}": found.flex[name] for name in ("forward", "backward")}
