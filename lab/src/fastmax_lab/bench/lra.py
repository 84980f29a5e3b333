"""`fastmax-lab bench lra`: training steps per second and peak memory of every attention on the five tasks, at full length."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fastmax_lab._progress import Progress
from fastmax_lab.baselines import SEVEN
from fastmax_lab.bench.measure import interleave, seconds
from fastmax_lab.bench.training_memory import peak
from fastmax_lab.lra import batches, tasks
from fastmax_lab.lra.model import classifier
from fastmax_lab.lra.presets import preset
from fastmax_lab.lra.tasks import Split
from fastmax_lab.measurements import Recorder, slug

ATTENTIONS = ("vanilla", *SEVEN)
SHAPES = {name: tasks.task(name) for name in tasks.names()}
"""Shapes of the tasks. Tokens are random; no data is read."""
TOKENS = 8000
"""Tokens per step at least: the batch is the smallest that has them. Ratios hardly depend on it, memory is in proportion."""
EXAMPLES = 2000
"""Examples that batches are loaded from: memory-mapped files of random tokens, read in the order of training."""
DATA = "data"
"""The contestant that only loads batches."""
QUICK_MEMORY = ("text",)
"""Each measurement of memory is a process, so a quick run makes them for the longest task only."""


@dataclass(frozen=True)
class LayerCell:
    """One task, its batch and the attention dropout of all contestants."""

    task: str
    batch: int
    attention_dropout: float


def cells(quick: bool) -> list[LayerCell]:
    """Return the cells without attention dropout, which every attention supports; unless quick, also with the preset's."""
    result = []
    for rate in (0.0,) if quick else (0.0, 0.1):
        for name, task in SHAPES.items():
            tokens = task.length * (2 if task.pair else 1)
            result.append(LayerCell(name, 1 if quick else max(1, -(-TOKENS // tokens)), rate))
    return result


def run(record: Recorder, quick: bool) -> None:
    """Record every task."""
    grid = cells(quick)
    measured_tasks = [cell for cell in grid if not quick or cell.task in QUICK_MEMORY]
    with Progress(len(grid) + len(measured_tasks) * len(ATTENTIONS)) as bar:
        for cell in grid:
            with_memory = not quick or cell.task in QUICK_MEMORY
            rounds = 2 if quick else 3
            values = measure(cell, ATTENTIONS, rounds, partial(_step, bar, cell.task), with_memory=with_memory)
            record.add(
                slug(cell.task, "dropout", cell.attention_dropout), asdict(cell) | {"preset": "skyformer"}, values
            )


def _step(bar: Progress, task: str, _share: float, label: str) -> None:
    bar.step(f"{label}, {task}")


def measure(
    cell: LayerCell,
    attentions: Sequence[str],
    rounds: int,
    show: Callable[[float, str], None],
    *,
    with_memory: bool = True,
) -> dict[str, Any]:
    """Time a step of each in turns; then measure peak memory, each in a separate process."""
    show(0.0, "time")
    with TemporaryDirectory() as folder:
        contestants = {name: training_step(cell, name) for name in attentions} | {DATA: loading(cell, folder)}
        timings = interleave(contestants, rounds=rounds, least_seconds=0.0)
        del contestants
    gc.collect()
    memory = {}
    for number, name in enumerate(attentions if with_memory else ()):
        show(0.5 + 0.5 * number / len(attentions), f"memory, {name}")
        memory[name] = peak(cell.task, cell.batch, name, cell.attention_dropout)
    shape = SHAPES[cell.task]
    return {
        "task": cell.task,
        "tokens": shape.length,
        "pair": shape.pair,
        "batch": cell.batch,
        "attention_dropout": cell.attention_dropout,
        "seconds": seconds(timings),
        "bytes": memory,
    }


def training_step(
    cell: LayerCell,
    attention: str,
    length: int | None = None,
    *,
    dropout: float | None = None,
    prepare: Callable[[nn.Module], None] | None = None,
) -> Callable[[], object]:
    """Return forward, backward and update of the preset's model, on random tokens of the task's shape or another length.

    `dropout` replaces the preset's between the layers; `prepare` may change the model.
    """
    task = SHAPES[cell.task] if length is None else replace(SHAPES[cell.task], length=length)
    torch.manual_seed(0)
    chosen = preset("skyformer", cell.task)
    layers = replace(chosen.model, attention_dropout=cell.attention_dropout)
    if dropout is not None:
        layers = replace(layers, dropout=dropout)
    model = classifier(task, layers, attention).train()
    if prepare is not None:
        prepare(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=chosen.train.lr, weight_decay=0.0, fused=True)
    lead = (cell.batch, 2) if task.pair else (cell.batch,)
    tokens = torch.randint(1, task.vocabulary, (*lead, task.length))
    # padded tasks have a mask, as in training, though it hides nothing: every contestant works on every token
    lengths = torch.full(lead, task.length) if task.pads else None
    labels = torch.randint(task.classes, (cell.batch,))

    def step() -> None:
        cross_entropy(model(tokens, lengths), labels).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def loading(cell: LayerCell, folder: str) -> Callable[[], object]:
    """Load the next batch of a training run."""
    task = SHAPES[cell.task]
    lead = (EXAMPLES, 2) if task.pair else (EXAMPLES,)
    generator = np.random.default_rng(0)
    columns = {
        "tokens": generator.integers(1, task.vocabulary, (*lead, task.length), np.uint16),
        "lengths": np.full(lead, task.length, np.int32),
        "labels": generator.integers(task.classes, size=EXAMPLES),
    }
    for name, column in columns.items():
        np.save(Path(folder) / f"{name}.npy", column)
    split = Split(*(np.load(Path(folder) / f"{name}.npy", mmap_mode="r") for name in columns))
    steps = count()
    return lambda: batches.take(split, batches.training_rows(EXAMPLES, cell.batch, 0, next(steps)))
