"""An item: one measurement of an experiment, its settings, and the file of JSON that says what came out."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fastmax._atomic_file import write_whole
from fastmax_lab.lra.metrics import DivergedError

BUDGETS = ("quick", "cpu", "full")
Document = dict[str, Any]
"""What a file holds: experiment, name, settings, result, seconds, machine. The seconds are all that were spent on it: where a
killed item went on, also those before the kill, and those on steps that the kill lost and that were made again."""


@dataclass(frozen=True)
class Work:
    """What a measurement is given: where the data is, a folder that outlives a kill, and whom to tell how far it is."""

    data: Path
    folder: Path
    show: Callable[[float, str], None] = lambda _share, _label: None

    def watch(self, steps: int) -> Callable[[int, float], bool]:
        """For `fastmax_lab.experiments.training.train`: shows how far a training is, and never ends it."""

        def watch(step: int, loss: float) -> bool:
            if step % 10 == 0 or step == steps:
                self.show(step / steps, f"step {step:,}, loss {loss:.3f}")
            return False

        return watch


@dataclass(frozen=True)
class Item:
    """One measurement.

    `settings` are all that decides the result, as JSON; `cost` is a guess of its seconds, for the estimate of what is left;
    `threads` that torch may use, None for as many as it was given. Small models are trained on one: more do not make them
    faster, and their numbers then do not depend on how many there are.
    """

    experiment: str
    name: str
    settings: dict[str, Any]
    measure: Callable[[Work], dict[str, Any]]
    cost: float = 1.0
    threads: int | None = None

    def path(self, out: Path) -> Path:
        return out / self.experiment / f"{self.name}.json"


class Experiment(Protocol):
    """A module of an experiment. What is measured later may depend on what was found, such as the best learning rate: `items`
    is asked again until nothing is missing."""

    @property
    def NAME(self) -> str: ...  # noqa: N802

    def items(self, budget: str, found: Sequence[Document]) -> list[Item]: ...


def found(item: Item, out: Path) -> Document | None:
    """The document of this very item: one with other settings is not it."""
    path = item.path(out)
    if not path.exists():
        return None
    document: Document = json.loads(path.read_text())
    return document if document["settings"] == plain(item.settings) else None


def documents(experiment: str, out: Path) -> list[Document]:
    """All that there is of an experiment, by name."""
    return [json.loads(path.read_text()) for path in sorted((out / experiment).glob("*.json"))]


def write(item: Item, out: Path, result: dict[str, Any], seconds: float, machine: dict[str, Any]) -> Document:
    """Whole or not at all; DivergedError if a number of the result is not finite."""
    document = {
        "experiment": item.experiment,
        "name": item.name,
        "settings": plain(item.settings),
        "result": plain(result),
        "seconds": round(seconds, 1),
        "machine": machine,
    }
    try:
        text = json.dumps(document, indent=1, allow_nan=False)
    except ValueError as error:
        raise DivergedError("the result has numbers that are not finite") from error
    path = item.path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, f"{text}\n".encode())
    return document


def plain(value: Any) -> Any:
    """As it is after it has been JSON: tuples are lists."""
    return json.loads(json.dumps(value))


def slug(*parts: object) -> str:
    """A file name: `fastmax2, gated` and 0.004 make fastmax2-gated-0.004."""
    words = " ".join(str(part) for part in parts).replace(",", " ").replace("/", " ").split()
    return "-".join(words)
