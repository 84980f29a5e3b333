"""The measurements of a folder, by experiment, and the statistics that sections take of them."""

from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from statistics import mean, stdev
from typing import TypeVar

from fastmax_lab.measurements import SUFFIX, Measurement, read

Results = dict[str, list[Measurement]]
Key = TypeVar("Key", bound=Hashable)


def load(folder: Path) -> Results:
    """Return the measurements of every experiment in a folder, by name.

    Raises:
        ValueError: there is none, or a file does not hold measurements.
    """
    found: Results = {}
    for path in sorted(folder.glob(f"*{SUFFIX}"), key=lambda path: path.stem):
        for one in sorted(read(path), key=lambda one: one.name):
            found.setdefault(one.experiment, []).append(one)
    if not found:
        raise ValueError(f"{folder} has no results: `fastmax-lab reproduce --out {folder}` makes them")
    return found


def group(measurements: Iterable[Measurement], key: Callable[[Measurement], Key]) -> dict[Key, list[Measurement]]:
    """Return the measurements by key, in the order in which keys first appear."""
    groups: dict[Key, list[Measurement]] = {}
    for measurement in measurements:
        groups.setdefault(key(measurement), []).append(measurement)
    return groups


def spread(values: list[float]) -> tuple[float, float | None]:
    """Return the mean, and the standard deviation if there are several values."""
    return mean(values), stdev(values) if len(values) > 1 else None


def one(measurements: Iterable[Measurement], name: str) -> Measurement | None:
    """Return the measurement of this name, if there is one."""
    return next((measurement for measurement in measurements if measurement.name == name), None)
