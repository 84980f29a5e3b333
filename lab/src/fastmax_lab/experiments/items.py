"""The items of an experiment, each measured separately and stored as one measurement."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fastmax_lab import measurements
from fastmax_lab.lra.metrics import DivergedError
from fastmax_lab.measurements import SUFFIX, Measurement, plain

BUDGETS = ("quick", "cpu", "full")


@dataclass(frozen=True)
class Workspace:
    """The surroundings of a measurement: the data folder, a folder that outlives a kill, and a callback for progress."""

    data: Path
    folder: Path
    show: Callable[[float, str], None] = lambda _share, _label: None

    def watch(self, steps: int) -> Callable[[int, float], bool]:
        """Return a callback for `fastmax_lab.experiments.training.train` that shows progress and never stops it."""

        def watch(step: int, loss: float) -> bool:
            if step % 10 == 0 or step == steps:
                self.show(step / steps, f"step {step:,}, loss {loss:.3f}")
            return False

        return watch


@dataclass(frozen=True)
class Item:
    """One measurement that an experiment requests.

    `settings` are all that decides the values, as JSON. `cost` estimates its seconds, for the time that is left.
    `threads` are those that torch may use, None for the default. Small models are trained on one: more do not make them
    faster, and their numbers then do not depend on the number of threads.
    """

    experiment: str
    name: str
    settings: dict[str, Any]
    measure: Callable[[Workspace], dict[str, Any]]
    cost: float = 1.0
    threads: int | None = None

    def is_measured_by(self, measurement: Measurement) -> bool:
        """Return whether this is the measurement of the item: the name and all settings agree."""
        return measurement.name == self.name and measurement.settings == plain(self.settings)


class Experiment(Protocol):
    """A module of an experiment.

    Later items may depend on what was found, such as the best learning rate: `items` is called until nothing is missing.
    """

    @property
    def NAME(self) -> str: ...  # noqa: N802

    def items(self, budget: str, found: Sequence[Measurement]) -> list[Item]: ...


def results_file(experiment: str, out: Path) -> Path:
    return out / f"{experiment}{SUFFIX}"


def stored(experiment: str, out: Path) -> dict[str, Measurement]:
    """Return the measurements of an experiment by name."""
    return {one.name: one for one in measurements.read(results_file(experiment, out))}


def store(
    item: Item, out: Path, values: dict[str, Any], seconds: float, machine: dict[str, Any], command: str
) -> Measurement:
    """Write the measurement of an item, replacing an older one of its name.

    Raises:
        DivergedError: a number of the values is not finite.
    """
    try:
        json.dumps(values, allow_nan=False)
    except ValueError as error:
        raise DivergedError("the result has numbers that are not finite") from error
    measurement = Measurement(
        item.experiment, item.name, plain(item.settings), plain(values), machine, command, round(seconds, 1)
    )
    measurements.append(results_file(item.experiment, out), measurement)
    return measurement
