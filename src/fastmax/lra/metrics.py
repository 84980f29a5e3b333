"""Metrics of a run: a line of JSON each, and TensorBoard; a resumed run forgets what came after its checkpoint."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from fastmax._atomic_file import write_whole

FILE = "metrics.jsonl"


class Metrics:
    """`with Metrics(folder, step) as metrics: metrics.log(step, kind, values)`. `step` is where the run begins."""

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        path = folder / FILE
        write_whole(path, b"".join(line for line in _lines(path) if json.loads(line)["step"] <= step))
        self.file = path.open("a")
        self.board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.file.close()
        self.board.close()

    def log(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """`kind` is train, dev or test."""
        self.file.write(json.dumps({"step": step, "kind": kind, **values}) + "\n")
        self.file.flush()
        for name, value in values.items():
            self.board.add_scalar(f"{kind}/{name}", value, step)


def read(folder: Path, kind: str | None = None) -> list[dict[str, float]]:
    """The lines of a run, in order."""
    lines = [json.loads(line) for line in _lines(folder / FILE)]
    return [line for line in lines if kind is None or line["kind"] == kind]


def _lines(path: Path) -> list[bytes]:
    """Whole lines: a killed run may leave half of one at the end."""
    data = path.read_bytes() if path.exists() else b""
    return [line for line in data.splitlines(keepends=True) if line.endswith(b"\n")]
