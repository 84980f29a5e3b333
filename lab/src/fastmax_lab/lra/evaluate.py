"""Loss and accuracy of a model over a split, every example once, shared among processes."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fastmax_lab.lra import tasks
from fastmax_lab.lra.batches import by_length, in_order, take
from fastmax_lab.lra.processes import Share
from fastmax_lab.lra.quirks import Quirks
from fastmax_lab.lra.run import RunConfig

MOVING_BATCHES = 20
"""The default number of batches that the historical moving dev set scores."""


class Score(NamedTuple):
    loss: float
    accuracy: float
    examples: int


def load_split(config: RunConfig, name: str, data: Path) -> tasks.Split:
    limit = config.train_examples if name == "train" else config.eval_examples
    if config.quirks.moving_dev and name == "val":
        limit = None
    return tasks.load(config.task, name, data, length=config.length, limit=limit)


def batches(split: tasks.Split, config: RunConfig, *, evaluation: int | None = None) -> list[np.ndarray]:
    """Return the rows of each batch of an evaluation. Raise ValueError if there is none.

    `evaluation` counts the evaluations of a dev set, which the historical one moves along by.
    """
    batch = config.train.batch
    start, limit = 0, None
    if config.quirks.moving_dev and evaluation is not None:
        limit = config.eval_examples or MOVING_BATCHES * batch
        start = evaluation * limit
    rows = list(in_order(len(split.labels), batch, start=start, limit=limit, whole=config.quirks.drop_last))
    if not rows:
        raise ValueError(f"nothing to evaluate: {len(split.labels)} examples fill no batch of {batch}")
    if config.quirks == Quirks():  # the sum over all of them does not depend on their order; the padding does
        everything = by_length(np.concatenate(rows), split.lengths)
        rows = [everything[i : i + batch] for i in range(0, len(everything), batch)]
    return rows


def evaluate(
    accelerator: Any,
    share: Share,
    model: nn.Module,
    split: tasks.Split,
    config: RunConfig,
    *,
    evaluation: int | None = None,
) -> Score:
    """Return the score over `batches`, in evaluation mode; leave the model as it was."""
    sums = torch.zeros(3, dtype=torch.float64)
    training = model.training
    model.eval()
    with torch.no_grad():
        for rows in batches(split, config, evaluation=evaluation):
            part = rows[share.rank :: share.world]
            # every process must make every call of a wrapped model, so one without examples repeats the first
            b = take(split, part if len(part) else rows[:1], trim=not config.quirks.full_length_mean)
            b = share.of(b).to(accelerator.device)
            with accelerator.autocast():
                logits = model(b.tokens, b.lengths).float()
            if len(part) and share.shard == 0:  # ranks that share the sequences have the same logits
                loss = cross_entropy(logits, b.labels, reduction="sum").double()
                correct = (logits.argmax(-1) == b.labels).sum().double()
                sums += torch.stack((loss, correct, torch.tensor(len(part)).to(correct))).cpu()
    model.train(training)
    # fp32 would round counts beyond 2^24, and some devices have no fp64
    total = (
        accelerator.reduce(sums.to(accelerator.device), "sum").tolist()
        if accelerator.num_processes > 1
        else sums.tolist()
    )
    return Score(total[0] / total[2], total[1] / total[2], int(total[2]))
