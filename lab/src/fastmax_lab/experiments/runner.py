"""Runs what is missing, item by item: kill it at any point, start it again, start it twice: each item is measured once."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any

import torch

from fastmax._atomic_file import remove_partial, write_whole
from fastmax_lab._progress import Progress
from fastmax_lab.data.files import MissingDataError
from fastmax_lab.experiments.items import Experiment, Item, Workspace, store, stored
from fastmax_lab.lra.metrics import DivergedError
from fastmax_lab.lra.run_folder import LOCK, InUseError, OtherRunError, clear, exclusive
from fastmax_lab.measurements import Measurement, machine, plain

WORK = "work"
"""Inside of the folder of the results: what unfinished items need to go on."""
NOTE = "item.json"
"""In the folder of an unfinished item: the settings that it was begun with, and the seconds spent on it."""
NOTED_EVERY = 5.0
"""Seconds between notes: as many may be missing after a kill."""


@dataclass
class Outcome:
    """The outcome of a run: how many items, and why the rest were not measured."""

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
    """Measure everything of a budget that is not in `out` yet.

    An item whose data is not there, or whose training diverges, is left out, with the reason. The next run tries it again,
    from its beginning.
    """
    outcome = Outcome()
    _tidy(experiments, budget, out)
    with Progress(1, budget, counted=False) as bar:
        spent = 0.0
        while True:
            every = {_key(item): item for item in plan(experiments, budget, out)}
            missing = [item for key, item in every.items() if key not in outcome.left_out]
            if not missing:  # but what another process has measured since
                outcome.left_out = {key: reason for key, reason in outcome.left_out.items() if key in every}
                return outcome
            bar.total = spent + sum(item.cost for item in missing)
            item = missing[0]  # its result may request items that come before the rest
            bar.show(spent, _key(item))
            if _measure(item, data, out, command, outcome, bar, spent, say):
                spent += item.cost


def plan(experiments: Sequence[Experiment], budget: str, out: Path) -> list[Item]:
    """Return the items that are missing."""
    missing: list[Item] = []
    for one in experiments:
        items, known = _asked(one, budget, out)
        missing += [item for item in items if _key(item) not in known]
    return [replace(item, threads=None) for item in missing] if budget == "full" else missing


def _asked(experiment: Experiment, budget: str, out: Path) -> tuple[list[Item], dict[str, Measurement]]:
    """Return the items of a budget, and the measurements of those that have theirs, by `_key`.

    The results of items may request more. Measurements with other settings are ignored, even under the same name.
    """
    files: dict[str, dict[str, Measurement]] = {}
    known: dict[str, Measurement] = {}
    while True:
        items = experiment.items(budget, list(known.values()))
        new = {}
        for item in items:
            if item.experiment not in files:
                files[item.experiment] = stored(item.experiment, out)
            measurement = files[item.experiment].get(item.name)
            if measurement is not None and _key(item) not in known and item.is_measured_by(measurement):
                new[_key(item)] = measurement
        if not new:
            return items, known
        known |= new


def _tidy(experiments: Sequence[Experiment], budget: str, out: Path) -> None:
    """Remove what items left that were killed after their measurement was stored and before their folder was removed."""
    for one in experiments:
        items, known = _asked(one, budget, out)
        for folder, item in ((_folder(item, out), item) for item in items if _key(item) in known):
            if folder.exists():
                with suppress(InUseError), exclusive(folder):
                    if _is_of(folder, item):
                        clear(folder)
                _remove_empty(folder)


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
    """Measure an item and store it. Return whether this process did so now."""
    folder = _folder(item, out)

    def show(share: float, label: str) -> None:
        bar.show(spent + share * item.cost, f"{_key(item)} {label}")

    try:
        with exclusive(folder):
            stored_now = stored(item.experiment, out).get(item.name)
            if stored_now is not None and item.is_measured_by(stored_now):  # another process has just done it
                return False
            with _threads(item.threads), _Attempt(item, folder) as attempt:
                values = attempt.measure(data, show)
                measurement = store(item, out, values, attempt.seconds(), machine(), command)
            clear(folder)
    except (MissingDataError, InUseError, DivergedError) as error:
        reason = _reason(error)
        outcome.left_out[_key(item)] = reason
        say(f"{_key(item)}: left out. {reason}")
        return False
    finally:
        _remove_empty(folder)
    outcome.measured += 1
    say(f"{_key(item)}: {measurement.seconds:,.0f} s")
    return True


class _Attempt:
    """An item under way in its folder, which this process holds: `with _Attempt(item, folder) as attempt: ...`.

    It goes on with what an attempt before it kept, if that had the same settings, and adds to its seconds.
    """

    def __init__(self, item: Item, folder: Path) -> None:
        self.item, self.folder = item, folder
        remove_partial(folder)
        if not _is_of(folder, item):
            clear(folder)
        self._begin()

    def __enter__(self) -> "_Attempt":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._keeps() and not isinstance(error, DivergedError):
            self._note()
        else:  # a checkpoint of a training that diverges only leads there again
            clear(self.folder)

    def measure(self, data: Path, show: Callable[[float, str], None]) -> dict[str, Any]:
        def told(share: float, label: str) -> None:
            if perf_counter() - self.noted >= NOTED_EVERY:
                self._note()
            show(share, label)

        workspace = Workspace(data, self.folder, told)
        try:
            return self.item.measure(workspace)
        except OtherRunError:  # of settings that are not among the item's
            clear(self.folder)
            self._begin()
            return self.item.measure(workspace)

    def seconds(self) -> float:
        return self.before + perf_counter() - self.start

    def _begin(self) -> None:
        note = _noted(self.folder)
        self.before = float(note["seconds"]) if note is not None and self._keeps() else 0.0
        self.start = perf_counter()
        self._note()

    def _note(self) -> None:
        self.noted = perf_counter()
        note = {"settings": self.item.settings, "seconds": round(self.seconds(), 1)}
        write_whole(self.folder / NOTE, json.dumps(note).encode())

    def _keeps(self) -> bool:
        """Return True if a run can be resumed."""
        return any(entry.name not in (LOCK, NOTE) for entry in self.folder.iterdir())


def _noted(folder: Path) -> dict[str, Any] | None:
    path = folder / NOTE
    note: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return note


def _is_of(folder: Path, item: Item) -> bool:
    """Return True if a folder belongs to the item, or has no note: an older release wrote none."""
    note = _noted(folder)
    return note is None or note["settings"] == plain(item.settings)


def _reason(error: Exception) -> str:
    if isinstance(error, InUseError):
        return "Another process is measuring it."
    return f"The training diverged: {error.what}." if isinstance(error, DivergedError) else str(error)


def _folder(item: Item, out: Path) -> Path:
    return out / WORK / item.experiment / item.name


def _remove_empty(folder: Path) -> None:
    """Remove the folder of an item, and those around it, if they are empty."""
    for path in (folder, folder.parent, folder.parent.parent):
        with suppress(OSError):
            path.rmdir()


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _key(item: Item) -> str:
    return f"{item.experiment}/{item.name}"
