"""Exactness and gradients: what must hold before any training is worth looking at."""

from collections.abc import Callable, Sequence
from typing import Any

from fastmax_lab.bench import exactness as bench
from fastmax_lab.experiments.items import Item, Workspace
from fastmax_lab.measurements import Measurement

NAME = "exactness"
TOKENS = {
    "quick": (256, 1024, 4096),
    "cpu": (256, 1024, 4096, 16384, 65536),
    "full": (256, 1024, 4096, 16384, 65536, 1 << 20),
}
BOUND_TOKENS = (8, 32, 128, 512)
SAVED_TOKENS = {"quick": (128, 256, 512), "cpu": (256, 512, 1024, 2048), "full": (256, 512, 1024, 2048)}
SEED = 0


def items(budget: str, found: Sequence[Measurement]) -> list[Item]:  # noqa: ARG001
    tokens, saved = TOKENS[budget], SAVED_TOKENS[budget]
    return [
        _item(
            "error",
            {"tokens": tokens, "heads": bench.HEADS, "head_dim": bench.HEAD_DIM},
            lambda: bench.errors(tokens, SEED),
            4,
        ),
        _item(
            "gradient-bound",
            {"tokens": BOUND_TOKENS, "head_dim": bench.HEAD_DIM, "cases": ["drawn", "worst"]},
            lambda: bench.gradient_bound(BOUND_TOKENS, SEED, bench.HEAD_DIM),
            2,
        ),
        _item("negative-weights", {"tokens": 64}, lambda: bench.negative_weights(SEED), 1),
        _item("saved-memory", {"tokens": saved, "head_dim": 32}, lambda: bench.saved_memory(saved, 32), 2),
    ]


def _item(name: str, settings: dict[str, Any], measure: Callable[[], list[dict[str, Any]]], cost: float) -> Item:
    def rows(_: Workspace) -> dict[str, Any]:
        return {"rows": measure()}

    return Item(NAME, name, {**settings, "seed": SEED}, rows, cost)
