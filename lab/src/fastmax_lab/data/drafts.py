"""Folders in the making: beside their place until they are whole, and gone if they never are."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

_DAY = 86_400.0


@contextmanager
def draft(folder: Path) -> Iterator[Path]:
    """Make a new folder in `folder`, removed at the end. First remove those that killed processes left over a day ago."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(".draft-*"):
        if time.time() - old.stat().st_mtime > _DAY:
            shutil.rmtree(old, ignore_errors=True)
    path = folder / f".draft-{uuid4().hex}"
    try:
        path.mkdir()
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
