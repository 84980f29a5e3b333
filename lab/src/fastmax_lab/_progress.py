"""How far a piece of work is, on standard error: a bar in a terminal, else a line now and then."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from types import TracebackType
from typing import Any, TextIO

EVERY = 10.0
"""Seconds between lines where there is no terminal."""

SPEED_OVER = 1800.0
"""Seconds over which the speed is taken that says how long it still takes: pieces may be minutes long."""

PATIENCE = 3.0
"""Seconds that a user waits without a word."""


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Says what is being waited for, if it takes long, and again now and then."""
    over, start = threading.Event(), time.monotonic()

    def speak_up() -> None:
        pause = PATIENCE
        while not over.wait(pause):
            print(f"{what} ... {time.monotonic() - start:,.0f} s", file=sys.stderr, flush=True)
            pause = EVERY

    threading.Thread(target=speak_up, daemon=True).start()
    try:
        yield
    finally:
        over.set()


class Progress:
    """`with Progress(total) as bar: bar.step("what comes now")`.

    `total` may change while the work goes on. What nobody counts one by one, such as seconds of work, is shown as a share
    (`counted=False`).
    """

    def __init__(self, total: float, title: str = "", stream: TextIO | None = None, *, counted: bool = True) -> None:
        self.total = total
        self.counted = counted
        self.title = title
        self.stream = sys.stderr if stream is None else stream
        self.done: float = -1
        self.start = self.said = time.monotonic()
        self.label = ""
        self._stack = ExitStack()
        self._bar: Any = None
        self._over = threading.Event()

    def __enter__(self) -> "Progress":
        if self.stream.isatty() and find_spec("rich") is not None:
            self._bar = self._stack.enter_context(_rich_bar(self.stream, counted=self.counted))
            self._bar.add_task(self.title, total=self.total)
        elif not self.stream.isatty():
            threading.Thread(target=self._speak_up, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._stack.close()
        if self._bar is None and self.stream.isatty():
            self._write("\r\x1b[K")

    def step(self, label: str) -> None:
        """Call before each of the `total` pieces of work."""
        self.show(self.done + 1, label)

    def show(self, done: float, label: str) -> None:
        """So many pieces are done."""
        self.done, self.label = done, label
        now = time.monotonic()
        if self._bar is not None:
            description = f"{self.title} {label}".strip()
            self._bar.update(self._bar.task_ids[0], completed=done, total=self.total, description=description)
            self._bar.refresh()
        elif self.stream.isatty():
            self._write(f"\r\x1b[K{self._line(now, label)}"[:110])
        elif now - self.said >= EVERY:
            self.said = now
            self._write(f"{self._line(now, label)}\n")

    def _speak_up(self) -> None:
        """A word in the midst of a piece that takes long. Waking once a second for microseconds disturbs no measurement."""
        while not self._over.wait(1.0):
            now = time.monotonic()
            if now - self.said > EVERY - 1:
                self.said = now
                self._write(f"{self._line(now, self.label)}, {now - self.start:,.0f} s so far\n")

    def _line(self, now: float, label: str) -> str:
        done = max(self.done, 0)
        share = min(done / max(self.total, 1), 1.0)
        left = f"{(now - self.start) / share * (1 - share):,.0f} s left" if share > 0 else ""
        parts = (self.title, f"{done:,}/{self.total:,}" if self.counted else f"{share:.0%}", label, left)
        return ", ".join(part for part in parts if part)

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()


def _rich_bar(stream: TextIO, *, counted: bool) -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    done = MofNCompleteColumn() if counted else TaskProgressColumn()
    columns = BarColumn(24), done, TimeRemainingColumn(), TextColumn("{task.description}")
    # Drawn when told, not by a thread of its own, which would disturb what is being measured.
    # What is printed meanwhile goes above the bar, unless it goes to a file.
    redirected = sys.stdout.isatty()
    console = Console(file=stream)
    return Progress(
        *columns,
        console=console,
        transient=True,
        auto_refresh=False,
        redirect_stdout=redirected,
        speed_estimate_period=SPEED_OVER,
    )
