"""Tar archives and folders alike: reading members without unpacking, and unpacking without harm."""

import gzip
import lzma
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4


def members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the files that are wanted, in the order of the archive or of the names."""
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
                body = archive.extractfile(member)
                assert body is not None
                yield name, body.read()
        _to_the_end(archive)


def unpack(path: Path, folder: Path) -> list[Path]:
    """Unpacks into `folder`; what is there already is not touched. Returns what was added.

    Python's "data" filter refuses members that would land outside, links that point outside, and devices.
    """
    if not hasattr(tarfile, "data_filter"):
        raise RuntimeError("unpacking needs a Python with tarfile.data_filter: 3.11.4 or later")
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".draft-{uuid4().hex}"
    try:
        with _damage(path), tarfile.open(path) as archive:
            archive.extractall(draft, filter="data")
            _to_the_end(archive)
        added = [folder / entry.name for entry in sorted(draft.iterdir())]
        taken = [entry for entry in added if entry.exists()]
        if taken:
            raise FileExistsError(f"{', '.join(map(str, taken))} is there already: move it away to unpack {path} again")
        for entry in added:
            os.replace(draft / entry.name, entry)
        return added
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _to_the_end(archive: tarfile.TarFile) -> None:
    """A decompressor checks its checksum at the end of the file, which lies beyond the end of the archive in it."""
    assert archive.fileobj is not None
    while archive.fileobj.read(1 << 20):
        pass


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError) as error:
        raise ValueError(f"{path} is damaged, cut short or not safe to unpack ({error})") from error
