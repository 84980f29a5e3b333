"""A small Table 1: every attention on Image at 16 x 16 pixels, trained for ten epochs, with learning rates tuned equally."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastmax_lab.experiments import lra
from fastmax_lab.experiments.items import Item
from fastmax_lab.experiments.lra import TaskBudget
from fastmax_lab.experiments.lra_settings import tried_rates
from fastmax_lab.experiments.tuning import rates_of
from fastmax_lab.measurements import Measurement

NAME = "lra-small"
RATES = (1e-3, 2e-3, 4e-3)
SEEDS = (0, 1, 2)
ATTENTIONS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "fastmax2, paper's scale": {"attention": "fastmax2", "scale": "paper"},
    "fastmax1": {},
    "fastmax2, gated": {"attention": "fastmax2", "decay": "gated"},
    "fastmax2": {},
    **{name: {} for name in ("linear", "informer", "performer", "reformer")},
}
"""In the order of their trainings."""
_EPOCH = 45_000 // 32
WHOLE = TaskBudget(batch=32, steps=10 * _EPOCH, length=256, looks=10, evaluated=None, cost=0.09)
TUNING = replace(WHOLE, steps=_EPOCH // 2, looks=1, evaluated=5000)
"""A twentieth of the whole training for each of three rates."""


def items(budget: str, found: Sequence[Measurement]) -> list[Item]:
    """Return the tuning runs and, for tuned attentions, a whole training per seed at the best rate."""
    if budget == "quick":
        return []
    tried = tried_rates([one for one in found if one.settings["steps"] == TUNING.steps], "image")
    rates = {name: rates_of(tried.get(name, {}), RATES) for name in ATTENTIONS}
    result = [item(name, 0, replace(TUNING, lr=lr), "tuning") for name, (wanted, _) in rates.items() for lr in wanted]
    return result + [
        item(name, seed, replace(WHOLE, lr=best), "whole")
        for seed in SEEDS
        for name, (_, best) in rates.items()
        if best is not None
    ]


def item(name: str, seed: int, budget: TaskBudget, kind: str) -> Item:
    """Return one training; `kind` separates tuning runs from whole ones."""
    made = lra.item("image", name, ATTENTIONS[name], seed, budget, f"{kind}-lr{budget.lr:g}")
    return replace(made, experiment=NAME)
