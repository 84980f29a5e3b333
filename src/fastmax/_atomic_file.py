"""Files written in one step: a reader sees the old content or the new, never a part of it."""

import errno
import os
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from uuid import uuid4


def check_target(path: Path) -> bool:
    """Check that `write_whole` may write to the path.

    Returns:
        True if the path is free or a regular file, which can be replaced. A device or a pipe is written through instead.

    Raises:
        OSError: The path is a folder, is in /proc, or cannot be looked at.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = None
    if mode is not None and S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    regular = mode is None or S_ISREG(mode)
    if regular and Path(os.path.realpath(path)).is_relative_to("/proc"):
        raise PermissionError(errno.EPERM, "Cannot replace a file of /proc", str(path))
    return regular


def write_whole(path: Path, data: bytes) -> None:
    """Write a file beside its place, flush it to the disk, and rename it.

    A process that is killed during the write leaves the old file unchanged. If the path is a symbolic link, its target
    is replaced.

    Raises:
        OSError: The file cannot be written; the error names `path`.
    """
    try:
        if check_target(path):
            _replace(Path(os.path.realpath(path)), data)
        else:
            path.write_bytes(data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def remove_partial(folder: Path) -> None:
    """Remove the files that killed writers left in a folder."""
    for partial in folder.glob(".*.partial"):
        partial.unlink(missing_ok=True)


def _replace(path: Path, data: bytes) -> None:
    partial = path.with_name(f".{uuid4().hex}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
