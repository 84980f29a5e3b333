"""Seconds of a training step in the trainings of the Long Range Arena: their own batches, contestants in turns.

The trainings run for hours beside other work, so their own clocks say little. Accuracy at equal time is reckoned with these.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_value_

from fastmax.bench.measure import interleave, seconds
from fastmax.lra.batches import Batch, take, training_rows
from fastmax.lra.evaluate import load_split
from fastmax.lra.run import RunConfig
from fastmax.lra.train import make_optimizer
from fastmax.reproduce.items import Document, Item, Work
from fastmax.reproduce.lra import TASKS, TaskBudget, make_config

NAME = "lra-pace"
TIMED: dict[str, dict[str, Any]] = {
    "fastmax2": {},
    "fastmax1": {},
    "fastmax2, gated": {"attention": "fastmax2", "decay": "gated"},
    "softmax": {},
    "vanilla": {},
}
BATCHES = 6
"""Of training, in each turn: where lengths are grouped, batches differ in cost."""


def items(budget: str, found: Sequence[Document]) -> list[Item]:  # noqa: ARG001  (one signature for all experiments)
    return [item(task, of, rounds=2 if budget == "quick" else 3) for task, of in TASKS[budget].items()]


def item(task: str, budget: TaskBudget, *, rounds: int) -> Item:
    configs = {
        name: make_config(task, changes.get("attention", name), changes, 0, budget) for name, changes in TIMED.items()
    }
    config = configs["fastmax2"]
    settings = {"task": task, "batch": config.train.batch, "length": config.task_shape().length}
    settings |= {"group_lengths": config.group_lengths, "attention_dropout": config.model.attention_dropout}
    settings |= {"attentions": list(TIMED), "batches": BATCHES, "rounds": rounds, "seed": 0}
    cost = 4 * (rounds + 1) * BATCHES * budget.cost
    return Item(NAME, task, settings, lambda work: measure(configs, rounds, work), cost)


def measure(configs: dict[str, RunConfig], rounds: int, work: Work) -> dict[str, Any]:
    """Seconds of a step of each, the mean over the same batches."""
    config = configs["fastmax2"]
    split = load_split(config, "train", work.data)
    examples, batch = len(split.labels), config.train.batch
    lengths = split.lengths if config.group_lengths else None
    rows = [training_rows(examples, batch, config.seed, step, lengths=lengths) for step in range(BATCHES)]
    batches = [take(split, of) for of in rows]
    work.show(0.0, "time")
    timings = interleave(
        {name: training_steps(of, batches) for name, of in configs.items()}, rounds=rounds, least_seconds=0.0
    )
    return {
        "tokens": float(np.mean([b.tokens.shape[-1] for b in batches])),
        "seconds": {
            name: {"best": t["best"] / BATCHES, "median": t["median"] / BATCHES} for name, t in seconds(timings).items()
        },
    }


def training_steps(config: RunConfig, batches: list[Batch]) -> Callable[[], None]:
    model = config.make_model().train()
    optimizer = make_optimizer(model, config)

    def steps() -> None:
        for batch in batches:
            cross_entropy(model(batch.tokens, batch.lengths), batch.labels).backward()  # type: ignore[no-untyped-call]
            clip_grad_value_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return steps
