"""Token arrays on disk: built once, block by block, then memory-mapped. A folder is there whole or not at all."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fastmax_lab._progress import Progress, waiting
from fastmax_lab.data.blocks import ExampleBlock, Source
from fastmax_lab.data.drafts import draft
from fastmax_lab.data.files import default_folder

VERSION = 1


def load(name: str, key: dict[str, str | int], source: Source, data: Path, limit: int | None) -> ExampleBlock:
    """Return the first `limit` examples of the source as memory-mapped arrays, from the cache if they are there."""
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in source.files]
    whole: dict[str, object] = {"version": VERSION, **key, **source.options, "files": stats}
    folder = _folder(data)
    if not _path(folder, name, whole).exists() and limit is not None:
        whole["limit"] = limit
    path = _path(folder, name, whole)
    if not path.exists():
        _build(path, whole, source, limit)
    return ExampleBlock(*(np.load(path / f"{column}.npy", mmap_mode="r")[:limit] for column in ExampleBlock._fields))


def _folder(data: Path) -> Path:
    """Return the folder beside the data, or the user's cache folder where the data cannot be written to."""
    data.mkdir(parents=True, exist_ok=True)
    return (data if os.access(data, os.W_OK) else default_folder()) / "arrays"


def _path(folder: Path, name: str, key: dict[str, object]) -> Path:
    return folder / f"{name}-{sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]}"


def _build(path: Path, key: dict[str, object], source: Source, limit: int | None) -> None:
    with draft(path.parent) as folder:
        _write(folder, source, limit)
        with _space(path.parent):
            (folder / "key.json").write_text(json.dumps(key, indent=1))
        try:
            os.replace(folder, path)
        except OSError:
            if not path.exists():  # else another process was faster, with the same arrays
                raise


def _write(folder: Path, source: Source, limit: int | None) -> None:
    total = min(n for n in (source.count, limit, sys.maxsize) if n is not None)
    columns: list[_GrowingArray] = []
    try:
        for block in _shown(source, total):
            if not columns:
                columns = [
                    _GrowingArray(folder / f"{n}.npy", a) for n, a in zip(ExampleBlock._fields, block, strict=True)
                ]
            left = total - columns[0].rows
            with _space(folder.parent):
                for column, array in zip(columns, block, strict=True):
                    column.append(array[:left])
            if columns[0].rows == total:
                break
        if not columns or not columns[0].rows:
            raise ValueError("the source has no example of this task and length")
        with _space(folder.parent):
            for column in columns:
                column.finish()
    finally:
        for column in columns:
            with suppress(OSError):  # what matters is flushed by now, or has failed and been reported
                column.file.close()


def _shown(source: Source, total: int) -> Iterator[ExampleBlock]:
    """Yield the blocks, with a progress bar if the number of examples is known."""
    if source.count is None:
        with waiting("reading the examples"):
            yield from source.blocks()
        return
    with Progress(total, "examples") as bar:
        bar.step("")
        for block in source.blocks():
            yield block
            bar.show(bar.done + len(block.labels), "")


class _GrowingArray:
    """A .npy file that grows: ordinary writes, because a full disk under a memory map kills the process."""

    def __init__(self, path: Path, like: np.ndarray) -> None:
        self.file: BinaryIO = path.open("wb")
        self.rows, self.shape, self.dtype = 0, like.shape[1:], like.dtype
        self._header()

    def append(self, array: np.ndarray) -> None:
        assert array.shape[1:] == self.shape, (array.shape, self.shape)
        assert array.dtype == self.dtype, (array.dtype, self.dtype)
        self.file.write(np.ascontiguousarray(array).data)
        self.file.flush()
        self.rows += len(array)

    def finish(self) -> None:
        self.file.seek(0)
        self._header()  # of the same size: NumPy leaves room for the first axis to grow
        self.file.flush()
        os.fsync(self.file.fileno())

    def _header(self) -> None:
        descr = np.lib.format.dtype_to_descr(self.dtype)
        header = {"descr": descr, "fortran_order": False, "shape": (self.rows, *self.shape)}
        np.lib.format.write_array_header_1_0(self.file, header)


@contextmanager
def _space(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(
            error.errno, f"{error.strerror}: the token arrays do not go into {folder}; no part of them was kept"
        ) from error
