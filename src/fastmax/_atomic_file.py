"""Files that are there whole or not at all: written beside their place, to the disk, then renamed."""

import os
from pathlib import Path
from uuid import uuid4


def write_whole(path: Path, data: bytes) -> None:
    """Whoever is killed meanwhile leaves the old file, if there was one, as it was."""
    partial = path.with_name(f".{path.name}.{uuid4().hex}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def remove_partial(folder: Path) -> None:
    """What killed writers left behind."""
    for partial in folder.glob(".*.partial"):
        partial.unlink(missing_ok=True)
