"""Rules for files and folders that a user names. They are checked before any work is done or anything written."""

import os
from pathlib import Path

from fastmax_lab._settings import Rule


def _existing_file(path: Path) -> str | None:
    return _unusable(path) or (_absent(path, "a file") if not path.is_file() else _forbidden(path, os.R_OK, "read"))


def _existing_folder(path: Path) -> str | None:
    return _unusable(path) or (None if path.is_dir() else _absent(path, "a folder"))


def _existing(path: Path) -> str | None:
    return _unusable(path) or (None if path.exists() else f"{path} is not there")


def _new_file(path: Path) -> str | None:
    from fastmax._atomic_file import check_target  # imports torch, which --help does not need

    unusable = _unusable(path)
    if unusable is not None:
        return unusable
    try:
        check_target(path)
    except OSError as error:
        return f"{path} cannot be written ({error.strerror})"
    if path.exists():
        return _forbidden(path, os.W_OK, "written")
    if path.is_symlink() and not path.resolve().parent.is_dir():
        return f"{path} cannot be written, the folder of its target is not there"
    return _new_folder(path)


def _new_folder(path: Path) -> str | None:
    unusable = _unusable(path)
    if unusable is not None:
        return unusable
    there = next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
    if not there.is_dir():
        return f"{path} cannot be written, {there} is not a folder"
    return None if os.access(there, os.W_OK) else f"{path} cannot be written, {there} does not allow it"


def _absent(path: Path, wanted: str) -> str:
    return f"{path} is not {wanted if path.exists() else 'there'}"


def _forbidden(path: Path, mode: int, what: str) -> str | None:
    return None if os.access(path, mode) else f"{path} cannot be {what}"


def _unusable(path: Path) -> str | None:
    """Return why the system cannot look at the path, such as a name that is too long, or None."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        return f"{str(path)[:60]!r} cannot be used ({reason})"
    return None


EXISTING, EXISTING_FILE, EXISTING_FOLDER = Rule(_existing), Rule(_existing_file), Rule(_existing_folder)
NEW_FILE, NEW_FOLDER = Rule(_new_file), Rule(_new_folder)
"""Files and folders to write to. The folders on the way to them need not be there yet."""
