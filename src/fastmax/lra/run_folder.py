"""The folder of a run, for one process group at a time: locked by the system, which frees it whenever the holder dies."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOCK = ".lock"


class InUseError(ValueError):
    """Another process holds the folder."""


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Makes the folder if need be and holds it; folders made that are still empty at the end are removed again.

    InUseError if another process holds it.
    """
    made = _make(folder)
    try:
        lock = _lock(folder)
        try:
            yield
        finally:
            # before it is unlocked, so that whoever waits for this very file sees that it is gone
            (folder / LOCK).unlink(missing_ok=True)
            os.close(lock)
    finally:
        for path in made:
            with suppress(OSError):
                path.rmdir()


def _make(folder: Path) -> list[Path]:
    """The folders that had to be made, the innermost first."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return missing


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
        if path.exists() and os.path.samestat(os.fstat(file), path.stat()):
            os.ftruncate(file, 0)
            os.pwrite(file, str(os.getpid()).encode(), 0)
            return file
        os.close(file)
