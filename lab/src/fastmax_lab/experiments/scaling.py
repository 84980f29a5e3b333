"""Scaling (Figure 3): time and memory of attention blocks by tokens; the factorized form alone; heads against channels."""

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
    "cpu": [Grid(d, tuple(1 << n for n in range(8, 17)), rounds=3, longest=1.5) for d in (16, 32, 64)]
    + [Grid(128, tuple(1 << n for n in range(8, 17)), rounds=2, longest=10.0)],
    "full": [Grid(d, tuple(1 << n for n in range(8, 18)), rounds=5, longest=20.0, limit=48 << 30) for d in (16, 32, 64, 128)],
}  # fmt: skip
LLAMA = Grid(128, (1024, 2048, 4096, 8192), heads=32, rounds=2, longest=10.0)
"""The block of Llama 2 with 7 billion parameters."""
FORMS = Grid(32, (64, 128, 256, 512, 1024, 2048, 4096))
HEADS = ((4, 64), (16, 32), (4, 128), (16, 64))
"""Heads and channels of each: of two neighbours the second has four times the heads and twice the width."""
HEADS_TOKENS = 32_768
"""The factorized form is the cheaper one for all of `HEADS`."""


def items(budget: str, found: Sequence[Measurement]) -> list[Item]:  # noqa: ARG001
    result = [item(grid) for grid in GRIDS[budget]]
    return result if budget == "quick" else [*result, item(LLAMA), forms_item(FORMS), heads_item(HEADS, HEADS_TOKENS)]


def item(grid: Grid) -> Item:
    def measure(workspace: Workspace) -> dict[str, Any]:
        cells = bench.times(grid, lambda share, label: workspace.show(0.7 * share, label))
        workspace.show(0.7, "memory")
        return {"time": cells, "memory": bench.memory(grid)}

    cost = grid.longest * 60
    name = f"d{grid.head_dim}" + (f"-heads{grid.heads}" if grid.heads != Grid(0, ()).heads else "")
    return Item(NAME, name, asdict(grid) | {"seed": 0, "order": [1, 2]}, measure, cost)


def forms_item(grid: Grid) -> Item:
    """Return the times of the factorized form alone, which the paper's break-even speaks of."""
    settings = {"head_dim": grid.head_dim, "tokens": grid.tokens, "heads": grid.heads, "rounds": grid.rounds}
    settings |= {"contestants": bench.CONTESTANTS, "is_causal": False, "pass": "forward", "seed": 0}
    return Item(NAME, f"forms-d{grid.head_dim}", settings, lambda _: {"time": bench.forms(grid)}, 10.0)


def heads_item(shapes: tuple[tuple[int, int], ...], tokens: int, rounds: int = 5) -> Item:
    """Return the times of blocks of one length by the number of heads and of channels."""
    settings = {"shapes": shapes, "tokens": tokens, "rounds": rounds, "is_causal": False, "pass": "forward", "seed": 0}
    return Item(NAME, "heads", settings, lambda _: {"time": bench.heads(shapes, tokens, rounds)}, 20.0)
