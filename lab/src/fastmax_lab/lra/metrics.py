"""Metrics of a run: a line of JSON each, and TensorBoard; a resumed run forgets what came after its checkpoint."""

import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from fastmax._atomic_file import write_whole

FILE = "metrics.jsonl"


class DivergedError(ValueError):
    """The loss of a training is not finite. `what` is the message without the advice."""

    def __init__(self, what: str, advice: str = "") -> None:
        super().__init__(f"{what}: {advice}" if advice else what)
        self.what = what


class Metrics:
    """`with Metrics(folder, step) as metrics: metrics.log(step, kind, values)`. `step` is where the run begins."""

    def __init__(self, folder: Path, step: int) -> None:
        path = folder / FILE
        write_whole(path, b"".join(line for line in _lines(path) if json.loads(line)["step"] <= step))
        self.file = path.open("a")
        self.board = _Board(folder / "tensorboard", purge_step=step + 1)

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
        self.board.add(step, {f"{kind}/{name}": value for name, value in values.items()})


class _Board:
    """Events for TensorBoard, written where they are made.

    torch's SummaryWriter hands them to a thread and waits for it at the end: for ever, if a signal unwinds the stack in the
    middle of handing one over.
    """

    def __init__(self, folder: Path, purge_step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
        from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

        self._event, self._summary = Event, Summary
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns():020d}.{socket.gethostname()}.{os.getpid()}"  # read in the order of names
        self._records = RecordWriter((folder / name).open("wb"))
        self._write(file_version="brain.Event:2")
        # what an earlier run logged from this step on is void
        self._write(step=purge_step, session_log=SessionLog(status=SessionLog.START))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        value = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(step=step, summary=self._summary(value=value))

    def close(self) -> None:
        self._records.close()

    def _write(self, **content: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **content).SerializeToString())
        self._records.flush()


def read(folder: Path, kind: str | None = None) -> list[dict[str, float]]:
    """The lines of a run, in order."""
    lines = [json.loads(line) for line in _lines(folder / FILE)]
    return [line for line in lines if kind is None or line["kind"] == kind]


def _lines(path: Path) -> list[bytes]:
    """Whole lines: a killed run may leave half of one at the end."""
    data = path.read_bytes() if path.exists() else b""
    return [line for line in data.splitlines(keepends=True) if line.endswith(b"\n")]
