"""Scale, order, decay (ours) on two tasks of the Long Range Arena: short sequences, equally tuned learning rates, seeds."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastmax_lab.experiments import lra
from fastmax_lab.experiments.items import Item
from fastmax_lab.experiments.lra import TaskBudget
from fastmax_lab.experiments.tuning import rates_of
from fastmax_lab.measurements import Measurement

NAME = "lra-settings"
RATES = (1e-3, 2e-3, 4e-3)
SEEDS = (0, 1, 2)
ATTENTIONS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "softmax, standardized": {"attention": "softmax", "standardized": True},
    "softmax, gated": {"attention": "softmax", "decay": "gated"},
    "fastmax1": {},
    "fastmax2": {},
    "fastmax2, paper's scale": {"attention": "fastmax2", "scale": "paper"},
    "fastmax2, learned scale": {"attention": "fastmax2", "scale": "learned"},
    "fastmax2, as released": {"attention": "released"},
    "fastmax4": {},
    "fastmax2, decay": {"attention": "fastmax2", "decay": "learned"},
    "fastmax2, gated": {"attention": "fastmax2", "decay": "gated"},
}
"""The counterparts without causality of those in `fastmax_lab.experiments.training`, and the authors' code."""
QUICK = ("softmax", "fastmax2", "fastmax2, gated")
CPU = {
    "image": TaskBudget(batch=32, steps=1500, length=64, looks=3, cost=0.03),
    "listops": TaskBudget(batch=32, steps=600, length=128, looks=3, group_lengths=True, cost=0.06),
}
"""Short sequences and many steps: with 300 steps on 256 pixels all had 19 to 22 %, with 1,500 on 64 26 to 27."""
FULL = {"image": TaskBudget(steps=10_000), "listops": TaskBudget(steps=10_000)}


def tried_rates(found: Sequence[Measurement], task: str) -> dict[str, dict[float, float]]:
    """Return the dev accuracy of seed 0 by attention and learning rate."""
    seen: dict[str, dict[float, float]] = {}
    for one in found:
        run = one.settings
        if run["seed"] == 0 and run["task"] == task:
            seen.setdefault(run["attention"], {})[run["lr"]] = one.values["dev_accuracy"]
    return seen


def items(budget: str, found: Sequence[Measurement]) -> list[Item]:
    """Return every rate with the first seed, then more seeds with each attention's best rate. Quick: one rate, one seed."""
    if budget == "quick":
        return [item("listops", name, 0, lra.QUICK["listops"]) for name in QUICK]
    tasks = {"cpu": CPU, "full": FULL}[budget]
    result = []
    for task, of in tasks.items():
        tried = tried_rates(found, task)
        for name in ATTENTIONS:
            rates, best = rates_of(tried.get(name, {}), RATES)
            result += [item(task, name, 0, replace(of, lr=lr)) for lr in rates]
            if best is not None:
                result += [item(task, name, seed, replace(of, lr=best)) for seed in SEEDS[1:]]
    return result


def item(task: str, name: str, seed: int, budget: TaskBudget) -> Item:
    made = lra.item(task, name, ATTENTIONS[name], seed, budget, f"lr{budget.lr:g}")
    return replace(made, experiment=NAME)
