"""Finding data files, and reading them with errors that name the file and the line."""

import lzma
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

RELEASE = "https://storage.googleapis.com/long-range-arena/lra_release.gz"
_INSIDE = (".", "lra_release", "lra_release/lra_release")


class MissingDataError(FileNotFoundError):
    """The user has to get the data: what else is not there is a defect."""


def default_folder() -> Path:
    """Return the user's cache folder."""
    return Path.home() / ".cache" / "fastmax"


def find(data: Path, names: Iterable[str]) -> dict[str, Path]:
    """Return the files that exist, in `data` or in an unpacked LRA release inside it."""
    places = {name: [data / inside / name for inside in _INSIDE] for name in names}
    return {name: p for name, paths in places.items() for p in [next((p for p in paths if p.exists()), None)] if p}


def need(task: str, data: Path, name: str, found: dict[str, Path]) -> Path:
    """Return a found file, or raise an error that names the missing one."""
    if name not in found:
        have = f"; there is {', '.join(found)}" if found else ""
        raise missing(task, data, [name], have)
    return found[name]


def inside(task: str, folder: Path, names: Iterable[str]) -> tuple[Path, ...]:
    """Return the files or folders in an unpacked archive, or raise an error that lists the missing ones."""
    paths = {name: folder / name for name in names}
    absent = [name for name, path in paths.items() if not path.exists()]
    if absent:
        raise missing(task, folder, absent)
    return tuple(paths.values())


def missing(task: str, data: Path, names: Iterable[str], have: str = "") -> "MissingDataError":
    return MissingDataError(
        f"{task}: {data} lacks {' or '.join(names)}{have}. `fastmax-lab data get {task}` fetches the data or says where it is"
    )


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a text file, plain or .xz, with their numbers from 1. Only a newline ends a line."""
    with damage(path), lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
        for number, line in enumerate(file, 1):
            yield number, line.rstrip(b"\r\n")


def content(path: Path) -> bytes:
    """Return the contents of a file, plain or .xz."""
    with damage(path), lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
        return file.read()


@contextmanager
def row(path: Path, number: int) -> Iterator[None]:
    """Name the line of a wrong value in its error."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}, line {number}: {error}") from error


@contextmanager
def damage(path: Path) -> Iterator[None]:
    """Name the file in the error of a decompressor."""
    try:
        yield
    except (lzma.LZMAError, EOFError) as error:
        raise ValueError(f"{path} is damaged or cut short ({error}); delete it and get it again") from error
