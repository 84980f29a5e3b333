"""Runs what is missing, item by item: kill it at any point, start it again, start it twice: each item is measured once."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from fastmax._progress import Progress
from fastmax.bench.measure import machine
from fastmax.lra.run_folder import InUseError, exclusive
from fastmax.reproduce.items import Document, Experiment, Item, Work, documents, found, write

WORK = "work"
"""Inside of the folder of the results: what unfinished items need to go on."""


@dataclass
class Outcome:
    """What a run did: how many items, and why others were not measured."""

    measured: int = 0
    left_out: dict[str, str] = field(default_factory=dict)


def run(
    experiments: Sequence[Experiment],
    budget: str,
    *,
    data: Path,
    out: Path,
    command: str,
    say: Callable[[str], None] = print,
) -> Outcome:
    """Everything of a budget that is not in `out` yet. An item whose data is not there is left out, with the reason."""
    outcome = Outcome()
    with Progress(1, budget, counted=False) as bar:
        spent = 0.0
        while True:
            missing = [item for item in plan(experiments, budget, out) if _key(item) not in outcome.left_out]
            if not missing:
                return outcome
            bar.total = spent + sum(item.cost for item in missing)
            for item in missing:
                bar.show(spent, _key(item))
                if _measure(item, data, out, command, outcome, bar, spent, say):
                    spent += item.cost
                else:
                    bar.total -= item.cost


def plan(experiments: Sequence[Experiment], budget: str, out: Path) -> list[Item]:
    """What is missing, as far as it is known."""
    items = [item for one in experiments for item in one.items(budget, _of_budget(one, budget, out))]
    missing = [item for item in items if found(item, out) is None]
    return [replace(item, threads=None) for item in missing] if budget == "full" else missing


def _of_budget(experiment: Experiment, budget: str, out: Path) -> list[Document]:
    """The documents that this budget asks for: others in the folder have no say in what comes next."""
    names = {item.name for item in experiment.items(budget, [])}
    every = documents(experiment.NAME, out)
    while True:  # what is found may ask for more
        known = [document for document in every if document["name"] in names]
        more = {item.name for item in experiment.items(budget, known)}
        if more <= names:
            return known
        names |= more


def _measure(
    item: Item,
    data: Path,
    out: Path,
    command: str,
    outcome: Outcome,
    bar: Progress,
    spent: float,
    say: Callable[[str], None],
) -> bool:
    """Whether it was measured now, and by this process."""
    folder = out / WORK / item.experiment / item.name

    def show(share: float, label: str) -> None:
        bar.show(spent + share * item.cost, f"{_key(item)} {label}")

    try:
        with exclusive(folder):
            if found(item, out) is not None:  # another process has just done it
                return False
            start = perf_counter()
            with _threads(item.threads):
                result = item.measure(Work(data, folder, show))
                document = write(item, out, result, perf_counter() - start, _machine(command))
            for entry in folder.iterdir():
                if entry.is_dir():
                    shutil.rmtree(entry)
    except (FileNotFoundError, InUseError) as error:
        reason = "Another process is measuring it." if isinstance(error, InUseError) else str(error)
        outcome.left_out[_key(item)] = reason
        say(f"{_key(item)}: left out. {reason}")
        return False
    for path in (folder, folder.parent, folder.parent.parent):  # those that are empty now
        with suppress(OSError):
            path.rmdir()
    outcome.measured += 1
    say(f"{_key(item)}: {document['seconds']:,.0f} s")
    return True


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _machine(command: str) -> dict[str, Any]:
    return machine() | {"command": command}


def _key(item: Item) -> str:
    return f"{item.experiment}/{item.name}"
