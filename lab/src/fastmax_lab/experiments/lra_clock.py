"""Image at equal time: softmax and Fastmax1 in as many steps as fit the same minutes, rates tuned equally, over seeds."""

from collections.abc import Sequence
from dataclasses import replace

from fastmax_lab.experiments import lra
from fastmax_lab.experiments.items import Item
from fastmax_lab.experiments.lra import TaskBudget
from fastmax_lab.experiments.lra_settings import best_rates
from fastmax_lab.measurements import Measurement

NAME = "lra-clock"
TASK = "image"
RATES = (1e-3, 2e-3, 4e-3)
SEEDS = (0, 1, 2)
STEPS = {"softmax": 1200, "fastmax1": 5000}
"""`lra-pace` times a step of softmax, by PyTorch's kernel, at 4.2 of Fastmax1 on Image: Fastmax1 ends a little earlier."""
BUDGET = TaskBudget(batch=16, looks=5, cost=0.35)


def items(budget: str, found: Sequence[Measurement]) -> list[Item]:
    """Return every rate with the first seed, then more seeds with each attention's best rate."""
    if budget == "quick":
        return []
    rates = best_rates(found, TASK)
    result = [item(name, 0, lr) for name in STEPS for lr in RATES]
    return result + [item(name, seed, rates[name]) for seed in SEEDS[1:] for name in STEPS if name in rates]


def item(name: str, seed: int, lr: float) -> Item:
    made = lra.item(TASK, name, {}, seed, replace(BUDGET, steps=STEPS[name], lr=lr), f"lr{lr:g}")
    return replace(made, experiment=NAME)
