"""Seconds of a training step in the trainings of the Long Range Arena: their own batches, contestants in turns.

The trainings run for hours while the machine does other work, so their clocks are unreliable. Accuracy at equal time
is computed with these seconds.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_value_

from fastmax_lab.bench.measure import interleave, seconds
from fastmax_lab.experiments.items import Item, Workspace
from fastmax_lab.experiments.lra import TASKS, TaskBudget, make_config
from fastmax_lab.lra.batches import Batch, take, training_rows
from fastmax_lab.lra.evaluate import load_split
from fastmax_lab.lra.run import RunConfig
from fastmax_lab.lra.tasks import Split
from fastmax_lab.lra.train import make_optimizer
from fastmax_lab.measurements import Measurement

NAME = "lra-pace"
TIMED: dict[str, dict[str, Any]] = {
    "fastmax2": {},
    "fastmax1": {},
    "fastmax2, gated": {"attention": "fastmax2", "decay": "gated"},
    "softmax": {},
    "vanilla": {},
}
BATCHES, OF_LENGTHS = 6, 12
"""Batches of training in each turn. Where examples are grouped by length, batches differ in cost, by far more for softmax
than for Fastmax: there it is more of them, and they stand for all batches of the training."""


def items(budget: str, found: Sequence[Measurement]) -> list[Item]:  # noqa: ARG001  (one signature for all experiments)
    return [item(task, of, rounds=2 if budget == "quick" else 3) for task, of in TASKS[budget].items()]


def item(task: str, budget: TaskBudget, *, rounds: int) -> Item:
    configs = {
        name: make_config(task, changes.get("attention", name), changes, 0, budget) for name, changes in TIMED.items()
    }
    config = configs["fastmax2"]
    settings = {"task": task, "batch": config.train.batch, "length": config.task_shape().length}
    settings |= {"group_lengths": config.group_lengths, "attention_dropout": config.model.attention_dropout}
    batches = OF_LENGTHS if config.group_lengths else BATCHES
    settings |= {"attentions": list(TIMED), "batches": batches, "rounds": rounds, "seed": 0}
    if config.group_lengths:
        settings |= {"spread_over_steps": config.train.steps}
    cost = 4 * (rounds + 1) * batches * budget.cost
    return Item(NAME, task, settings, lambda workspace: measure(configs, rounds, workspace), cost)


def measure(configs: dict[str, RunConfig], rounds: int, workspace: Workspace) -> dict[str, Any]:
    """Return the seconds of a step of each, the mean over the same batches."""
    config = configs["fastmax2"]
    batches = chosen(load_split(config, "train", workspace.data), config)
    workspace.show(0.0, "time")
    timings = interleave(
        {name: training_steps(of, batches) for name, of in configs.items()}, rounds=rounds, least_seconds=0.0
    )
    return {
        "tokens": float(np.mean([b.tokens.shape[-1] for b in batches])),
        "seconds": {
            name: {"best": t["best"] / len(batches), "median": t["median"] / len(batches)}
            for name, t in seconds(timings).items()
        },
    }


def chosen(split: Split, config: RunConfig) -> list[Batch]:
    """Return the first batches of the training; if they differ in length, some of all its batches, evenly by length."""
    examples, batch = len(split.labels), config.train.batch
    if not config.group_lengths:
        return [take(split, training_rows(examples, batch, config.seed, step)) for step in range(BATCHES)]
    lengths = np.asarray(split.lengths)
    steps = range(config.train.steps)
    rows = [training_rows(examples, batch, config.seed, step, lengths=lengths) for step in steps]
    longest = np.argsort([lengths[of].max() for of in rows], kind="stable")
    places = (np.arange(OF_LENGTHS) + 0.5) / OF_LENGTHS * len(rows)
    return [take(split, rows[step]) for step in longest[places.astype(int)]]


def training_steps(config: RunConfig, batches: list[Batch]) -> Callable[[], None]:
    model = config.make_model().train()
    optimizer = make_optimizer(model, config)

    def steps() -> None:
        for batch in batches:
            cross_entropy(model(batch.tokens, batch.lengths), batch.labels).backward()  # type: ignore[no-untyped-call]
            if config.train.clip_value is not None:
                clip_grad_value_(model.parameters(), config.train.clip_value)
            optimizer.step()
            optimizer.zero_grad()

    return steps
