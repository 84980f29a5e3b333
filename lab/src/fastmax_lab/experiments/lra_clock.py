"""Image at equal time: softmax and Fastmax1 in as many steps as fit the same minutes, rates tuned equally, over seeds."""

from collections.abc import Sequence
from dataclasses import replace

from fastmax_lab.experiments import lra
from fastmax_lab.experiments.items import Item
from fastmax_lab.experiments.lra import TaskBudget
from fastmax_lab.experiments.lra_settings import tried_rates
from fastmax_lab.experiments.tuning import rates_of
from fastmax_lab.measurements import Measurement

NAME = "lra-clock"
TASK = "image"
RATES = (1e-3, 2e-3, 4e-3)
SEEDS = (0, 1, 2)
STEPS = {"softmax": 1200, "fastmax1": 5000}
"""`lra-pace` times a step of softmax, by PyTorch's kernel, at 4.1 of Fastmax1: both end after about the same time."""
BUDGET = TaskBudget(batch=16, looks=5, cost=0.35)


def items(budget: str, found: Sequence[Measurement]) -> list[Item]:
    """Return every rate with the first seed, then more seeds with each attention's best rate."""
    if budget == "quick":
        return []
    tried = tried_rates(found, TASK)
    rates = {name: rates_of(tried.get(name, {}), RATES) for name in STEPS}
    result = [item(name, 0, lr) for name, (wanted, _) in rates.items() for lr in wanted]
    return result + [
        item(name, seed, best) for seed in SEEDS[1:] for name, (_, best) in rates.items() if best is not None
    ]


def item(name: str, seed: int, lr: float) -> Item:
    made = lra.item(TASK, name, {}, seed, replace(BUDGET, steps=STEPS[name], lr=lr), f"lr{lr:g}")
    return replace(made, experiment=NAME)
