"""A progress bar on standard error: what is done, what is under way, how long is left."""

import sys
import time
from types import TracebackType
from typing import TextIO


class Progress:
    """`with Progress(total) as bar: bar.step("what comes now")`. Silent unless the stream is a terminal."""

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self.total = total
        self.stream = sys.stderr if stream is None else stream
        self.done = -1
        self.start = time.monotonic()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write("")

    def step(self, label: str) -> None:
        """Call before each of the `total` pieces of work."""
        self.done += 1
        share = min(self.done / max(self.total, 1), 1.0)
        passed = time.monotonic() - self.start
        left = f"{passed / share * (1 - share):4.0f} s left" if share else ""
        bar = "#" * round(24 * share)
        self._write(f"[{bar:24}] {self.done}/{self.total} {left} {label}"[:110])

    def _write(self, line: str) -> None:
        if self.stream.isatty():
            self.stream.write(f"\r\x1b[K{line}")
            self.stream.flush()
