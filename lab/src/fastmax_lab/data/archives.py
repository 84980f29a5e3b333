"""Tar archives and folders under one interface, read without unpacking, and safe unpacking."""

import errno
import gzip
import lzma
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fastmax_lab.data.drafts import draft

MAX_BYTES = 64 * 10**9
"""The default limit of what an archive may unpack to: the release of the Long Range Arena takes about half of it."""

MAX_MEMBER_BYTES = 10**9
"""The most bytes that are read into memory at once."""


def members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of the requested files, in the order of the archive or of the names."""
    if path.is_dir():
        for file in sorted(p for p in path.rglob("*") if p.is_file()):
            name = file.relative_to(path.parent).as_posix()
            if wanted(name):
                yield name, file.read_bytes()
        return
    with _damage(path), tarfile.open(path) as archive:
        for member in archive:
            name = member.name.removeprefix("./")
            if member.isfile() and wanted(name):
                if member.size > MAX_MEMBER_BYTES:
                    raise ValueError(f"{path}: {name} has {member.size:,} bytes, more than any file of the data sets")
                body = archive.extractfile(member)
                assert body is not None
                yield name, body.read()
        _to_the_end(archive)


def unpack(path: Path, folder: Path, *, max_bytes: int = MAX_BYTES) -> list[Path]:
    """Unpack into `folder`, without touching existing files. Return what was added.

    Python's "data" filter refuses members that would land outside, links that point outside, and devices; an archive that
    holds more than `max_bytes`, or than the disk, is refused as soon as that is known.
    """
    if not hasattr(tarfile, "data_filter"):
        raise RuntimeError("unpacking needs a Python with tarfile.data_filter: 3.11.4 or later")
    with draft(folder) as new:
        with _damage(path), tarfile.open(path) as archive:
            archive.extractall(new, filter=_Budget(path, folder, max_bytes))
            _to_the_end(archive)
        added = [folder / entry.name for entry in sorted(new.iterdir())]
        taken = [entry for entry in added if entry.exists()]
        if taken:
            raise FileExistsError(f"{', '.join(map(str, taken))} is there already: move it away to unpack {path} again")
        for entry in added:
            os.replace(new / entry.name, entry)
        return added


class _Budget:
    """A filter of members, Python's "data" filter, that adds up their sizes before they are written."""

    def __init__(self, path: Path, folder: Path, max_bytes: int) -> None:
        self.path, self.folder = path, folder
        self.max_bytes, self.free = max_bytes, shutil.disk_usage(folder).free
        self.bytes = 0

    def __call__(self, member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
        self.bytes += max(member.size, 0)
        if self.bytes > self.max_bytes:
            raise ValueError(f"{self.path} holds more than {self.max_bytes / 1e9:,.3g} GB, which is the limit")
        if self.bytes > self.free:
            raise OSError(
                errno.ENOSPC, f"{self.path} holds more than the {self.free / 1e9:,.3g} GB that {self.folder} has free"
            )
        return tarfile.data_filter(member, folder)


def _to_the_end(archive: tarfile.TarFile) -> None:
    """Read to the end of the file, where a decompressor checks its checksum: the archive in it ends before."""
    assert archive.fileobj is not None
    while archive.fileobj.read(1 << 20):
        pass


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError) as error:
        raise ValueError(_damaged(path, error)) from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise ValueError(_damaged(path, error)) from error  # bzip2 has no special exception


def _damaged(path: Path, error: BaseException) -> str:
    """Return the error in one line: tarfile lists every decompressor that it tried."""
    return f"{path} is damaged, cut short or not safe to unpack ({str(error).partition(chr(10))[0].rstrip(':')})"
