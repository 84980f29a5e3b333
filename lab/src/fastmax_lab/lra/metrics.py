"""Metrics of a run, a line of JSON each. A resumed run drops the lines after its checkpoint."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from fastmax._atomic_file import write_whole

FILE = "metrics.jsonl"


class DivergedError(ValueError):
    """The loss of a training is not finite. `what` is the message without the advice."""

    def __init__(self, what: str, advice: str = "") -> None:
        super().__init__(f"{what}: {advice}" if advice else what)
        self.what = what


class Metrics:
    """The log of a run that begins at `step`: `with Metrics(folder, step) as metrics: metrics.log(...)`."""

    def __init__(self, folder: Path, step: int) -> None:
        path = folder / FILE
        write_whole(path, b"".join(line for line in _lines(path) if json.loads(line)["step"] <= step))
        self.file = path.open("a")

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.file.close()

    def log(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Write one line. `kind` is train or dev."""
        self.file.write(json.dumps({"step": step, "kind": kind, **values}) + "\n")
        self.file.flush()


def read(folder: Path, kind: str | None = None) -> list[dict[str, float]]:
    """Return the lines of a run, in order."""
    lines = [json.loads(line) for line in _lines(folder / FILE)]
    return [line for line in lines if kind is None or line["kind"] == kind]


def _lines(path: Path) -> list[bytes]:
    """Return the whole lines. A killed run may leave half of one at the end."""
    data = path.read_bytes() if path.exists() else b""
    return [line for line in data.splitlines(keepends=True) if line.endswith(b"\n")]
