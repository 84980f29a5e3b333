"""Scaling (Figure 3): time and memory of attention blocks against the number of tokens, one item a head dimension."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fastmax_lab.bench import scaling as bench
from fastmax_lab.bench.scaling import Grid
from fastmax_lab.experiments.items import Item, Workspace
from fastmax_lab.measurements import Measurement

NAME = "scaling"
GRIDS = {
    "quick": [Grid(d, (256, 1024, 4096, 16384), rounds=2, longest=0.25, limit=1 << 30) for d in (32, 64)],
    "cpu": [Grid(d, tuple(1 << n for n in range(8, 17)), rounds=3, longest=1.5) for d in (16, 32, 64, 128)],
    "full": [Grid(d, tuple(1 << n for n in range(8, 18)), rounds=5, longest=20.0, limit=48 << 30) for d in (16, 32, 64, 128)],
}  # fmt: skip


def items(budget: str, found: Sequence[Measurement]) -> list[Item]:  # noqa: ARG001
    return [item(grid) for grid in GRIDS[budget]]


def item(grid: Grid) -> Item:
    def measure(workspace: Workspace) -> dict[str, Any]:
        cells = bench.times(grid, lambda share, label: workspace.show(0.7 * share, label))
        workspace.show(0.7, "memory")
        return {"time": cells, "memory": bench.memory(grid)}

    cost = grid.longest * 60
    return Item(NAME, f"d{grid.head_dim}", asdict(grid) | {"seed": 0, "order": [1, 2]}, measure, cost)
