"""The five tasks of the Long Range Arena: what each looks like, and its examples as token arrays."""

from dataclasses import replace
from pathlib import Path

from fastmax_lab._settings import SettingError
from fastmax_lab.data import cache
from fastmax_lab.data.registry import DataSet
from fastmax_lab.lra.tasks import image, listops, pathfinder, pixels, retrieval, text
from fastmax_lab.lra.tasks.interface import Split, Task, TaskModule

__all__ = ["SPLITS", "Split", "Task", "data_sets", "load", "module", "names", "task"]

SPLITS = ("train", "val", "test")
_MODULES: dict[str, TaskModule] = {
    "listops": listops,
    "text": text,
    "retrieval": retrieval,
    "image": image,
    "pathfinder": pathfinder,
}
_SHORTEST = 16  # for sequences that are padded: there are enough different ListOps expressions of this length


def names() -> tuple[str, ...]:
    return tuple(_MODULES)


def module(name: str) -> TaskModule:
    """Return the module of a task."""
    if name not in _MODULES:
        raise ValueError(f"task must be one of {', '.join(_MODULES)}, got {name!r}")
    return _MODULES[name]


def data_sets() -> dict[str, DataSet]:
    """Return the data set of each task."""
    return {name: one.DATA for name, one in _MODULES.items()}


def task(name: str, *, length: int | None = None) -> Task:
    """Return a task by name; `length` makes its sequences shorter than the official ones.

    Texts are cut. ListOps expressions are no longer than it; an expression cannot be cut. Images are averaged over
    squares of pixels, so that their length is 1024, 256, 64, 16 or 4.
    """
    official = module(name).TASK
    if length is None:
        return official
    if official.pads and not _SHORTEST <= length <= official.length:
        raise SettingError("length", f"must be from {_SHORTEST} to {official.length} for {name}, got {length}")
    if not official.pads and length not in pixels.LENGTHS:
        raise SettingError("length", f"must be one of {', '.join(map(str, pixels.LENGTHS))} for {name}, got {length}")
    return replace(official, length=length)


def load(
    name: str, split: str, data: Path, *, length: int | None = None, limit: int | None = None, seed: int = 0
) -> Split:
    """Load the first `limit` examples of a split, or all.

    They come from the official files in `data` if it has them, else from the compact ones. ListOps and Pathfinder are
    generated from `seed` if there are neither; for other tasks FileNotFoundError lists the missing files. The arrays
    are built once and kept in `data`, or in the user's cache folder if that cannot be written to.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    shape = task(name, length=length)
    source = module(name).source(data, split, shape.length, seed)
    key: dict[str, str | int] = {"task": name, "split": split, "length": shape.length}
    return Split(*cache.load(f"{name}-{split}", key, source, data, limit))
