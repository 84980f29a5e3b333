"""The folder of a run, for one process group at a time: locked by the system, which frees it whenever the holder dies."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOCK = ".lock"
TRIES = 100
"""Attempts to make a folder and lock it, while ending runs remove it in between."""


class InUseError(ValueError):
    """Another process holds the folder."""


class OtherRunError(ValueError):
    """An error for a folder that belongs to a run with other settings."""


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Make the folder if need be and hold it; remove folders that were made and are still empty at the end.

    InUseError if another process holds it.
    """
    made: set[Path] = set()
    try:
        lock = _hold(folder, made)
        try:
            yield
        finally:
            # before it is unlocked, so that a process that waits for this file sees that it is gone
            (folder / LOCK).unlink(missing_ok=True)
            os.close(lock)
    finally:
        for path in sorted(made, reverse=True):  # the innermost first
            with suppress(OSError):
                path.rmdir()


def clear(folder: Path) -> None:
    """Remove all that is in a folder which this process holds."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != LOCK:
            entry.unlink()


def _hold(folder: Path, made: set[Path]) -> int:
    """Take the lock. The folders that had to be made go to `made`, even if this fails."""
    tries = 0
    while True:
        tries += 1
        made |= {path for path in (folder, *folder.parents) if not path.exists()}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return _lock(folder)
        except FileNotFoundError:  # another process, at its end, removed what it had made
            if tries == TRIES:
                raise


def _lock(folder: Path) -> int:
    import fcntl  # not on every system, and only a run needs it

    path = folder / LOCK
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(file, 32, 0).decode(errors="replace") or "unknown"
            os.close(file)
            raise InUseError(
                f"{folder} is in use by another run (process {holder}): wait for its end, or give another --out"
            ) from None
        # a run that just ended may have removed the file between our opening and locking it
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file), path.stat()):
                os.ftruncate(file, 0)
                os.pwrite(file, str(os.getpid()).encode(), 0)
                return file
        os.close(file)
