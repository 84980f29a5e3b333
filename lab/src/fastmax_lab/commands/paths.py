"""Files and folders that a user names: what is wrong with one is said before any work is done or anything written."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path


def existing_file(path: Path) -> str | None:
    """Why it cannot be read, or None."""
    return _strange(path) or (_absent(path, "a file") if not path.is_file() else _forbidden(path, os.R_OK, "read"))


def existing_folder(path: Path) -> str | None:
    return _strange(path) or (None if path.is_dir() else _absent(path, "a folder"))


def existing(path: Path) -> str | None:
    return _strange(path) or (None if path.exists() else f"{path} is not there")


def new_file(path: Path) -> str | None:
    """Why it cannot be written, or None; the folders on the way to it need not be there yet."""
    if _strange(path) is None and path.is_dir():
        return f"{path} cannot be written, it is a folder"
    return _forbidden(path, os.W_OK, "written") if os.path.exists(path) else new_folder(path)


def new_folder(path: Path) -> str | None:
    """Why it cannot be written to or made, or None."""
    strange = _strange(path)
    if strange is not None:
        return strange
    there = next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
    if not there.is_dir():
        return f"{path} cannot be written, {there} is not a folder"
    return None if os.access(there, os.W_OK) else f"{path} cannot be written, {there} does not allow it"


def path_type(refusal: Callable[[Path], str | None]) -> Callable[[str], Path]:
    """For the `type` of an argument without a name."""

    def convert(text: str) -> Path:
        problem = refusal(Path(text))
        if problem is not None:
            raise argparse.ArgumentTypeError(problem)
        return Path(text)

    return convert


def _absent(path: Path, wanted: str) -> str:
    return f"{path} is not {wanted if path.exists() else 'there'}"


def _forbidden(path: Path, mode: int, what: str) -> str | None:
    return None if os.access(path, mode) else f"{path} cannot be {what}"


def _strange(path: Path) -> str | None:
    """What no file can be called, or is not to be looked at."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        return f"{str(path)[:60]!r} cannot be used ({reason})"
    return None
