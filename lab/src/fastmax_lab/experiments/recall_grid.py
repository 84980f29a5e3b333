"""Recall (ours): multi-query associative recall by the number of pairs and the head dimension, and the loss by a gate."""

from collections.abc import Sequence
from dataclasses import asdict, replace

from fastmax_lab.experiments.items import Item
from fastmax_lab.experiments.recall import RecallRun, recall
from fastmax_lab.measurements import Measurement, slug

NAME = "recall"
ATTENTIONS = ("softmax", "fastmax2", "fastmax2, gated", "fastmax1", "linear", "performer")
STARTS = ((2.0, 7.0), (2.0, 12.0), (9.0, 9.0))
"""Reaches that gates start with, as powers of two."""


def runs(budget: str) -> list[RecallRun]:
    """Return a grid of pairs and widths; unless quick, also gates with other starts, one pair far away, and second seeds."""
    if budget == "quick":
        base = RecallRun("", names=16, steps=300, batch=32, width=32)
        return [replace(base, attention=name, pairs=pairs) for pairs in (4, 8) for name in ATTENTIONS]
    base = RecallRun("", steps=800 if budget == "cpu" else 8000)
    pairs, widths = ((64, 16), (64, 32)) if budget == "cpu" else ((64, 128, 16), (128, 64, 32))
    grid = [
        replace(base, attention=name, pairs=p, width=w, names=max(128, p))
        for w in widths
        for p in pairs
        for name in ATTENTIONS
    ]
    gates = [replace(base, attention="fastmax2, gated", memory=memory) for memory in STARTS]
    far = replace(base, attention="fastmax2", pairs=1, filler=512)
    away = [far, *(replace(far, attention="fastmax2, gated", memory=memory) for memory in STARTS)]
    again = [replace(base, attention="fastmax2", seed=1), replace(gates[-1], seed=1)]
    return list(dict.fromkeys([*grid, *gates, *away, *again]))


def items(budget: str, found: Sequence[Measurement]) -> list[Item]:  # noqa: ARG001
    return [item(run) for run in runs(budget)]


def name_of(run: RecallRun) -> str:
    memory = f"m{run.memory[0]:g}-{run.memory[1]:g}" if run.attention.endswith("gated") else ""
    far = f"filler{run.filler}" if run.filler else ""
    size = f"pairs{run.pairs} d{run.width // run.heads}"
    return slug(size, far, run.attention, memory, f"seed{run.seed}")


def item(run: RecallRun) -> Item:
    cost = 2e-5 * run.steps * run.batch * (3 * run.pairs + run.filler) * run.width / 64
    return Item(
        NAME, name_of(run), asdict(run), lambda workspace: recall(run, workspace.watch(run.steps)), cost, threads=1
    )
