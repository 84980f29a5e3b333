"""Progress of work on standard error: a bar in a terminal, else a line now and then."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    import rich.progress

EVERY = 10.0
"""Seconds between lines where there is no terminal."""

SPEED_OVER = 1800.0
"""Seconds over which the bar averages the speed: pieces may be minutes long."""

PATIENCE = 3.0
"""Seconds before `waiting` prints its first line."""


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Print what the program waits for, if it takes long, and again now and then."""
    over, start = threading.Event(), time.monotonic()

    def report() -> None:
        pause = PATIENCE
        while not over.wait(pause):
            print(f"{what} ... {time.monotonic() - start:,.0f} s", file=sys.stderr, flush=True)
            pause = EVERY

    threading.Thread(target=report, daemon=True).start()
    try:
        yield
    finally:
        over.set()


class Progress:
    """A bar or lines: `with Progress(total) as bar: bar.step("the next piece")`.

    `total` may change in between. Work that is not counted in pieces, such as seconds, is shown as a share
    (`counted=False`).
    """

    def __init__(self, total: float, title: str = "", stream: TextIO | None = None, *, counted: bool = True) -> None:
        self.total = total
        self.counted = counted
        self.title = title
        self.stream = sys.stderr if stream is None else stream
        self.done: float = -1
        self.start = self.printed = time.monotonic()
        self.label = ""
        self._bar = _rich_bar(self.stream, counted=counted) if self.stream.isatty() else None
        self._over = threading.Event()

    def __enter__(self) -> "Progress":
        if self._bar is not None:
            self._bar.start()
            self._bar.add_task(self.title, total=self.total)
        else:
            threading.Thread(target=self._report, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._bar is not None:
            self._bar.stop()

    def step(self, label: str) -> None:
        """Show that one more piece is done and name the next; call it before each of the `total` pieces."""
        self.show(self.done + 1, label)

    def show(self, done: float, label: str) -> None:
        """Show the number of pieces that are done."""
        self.done, self.label = done, label
        now = time.monotonic()
        if self._bar is not None:
            description = f"{self.title} {label}".strip()
            self._bar.update(self._bar.task_ids[0], completed=done, total=self.total, description=description)
            self._bar.refresh()
        elif now - self.printed >= EVERY:
            self.printed = now
            self._write(self._line(now, label))

    def _report(self) -> None:
        """Print a line during a piece that takes long. Waking once a second for microseconds disturbs no measurement."""
        while not self._over.wait(1.0):
            now = time.monotonic()
            if now - self.printed > EVERY - 1:
                self.printed = now
                self._write(f"{self._line(now, self.label)}, {now - self.start:,.0f} s so far")

    def _line(self, now: float, label: str) -> str:
        done = max(self.done, 0)
        share = min(done / max(self.total, 1), 1.0)
        left = f"{(now - self.start) / share * (1 - share):,.0f} s left" if share > 0 else ""
        parts = (self.title, f"{done:,}/{self.total:,}" if self.counted else f"{share:.0%}", label, left)
        return ", ".join(part for part in parts if part)

    def _write(self, line: str) -> None:
        print(line, file=self.stream, flush=True)


def _rich_bar(stream: TextIO, *, counted: bool) -> "rich.progress.Progress":
    """Return a bar that is drawn at each step. A thread that draws would disturb what is measured."""
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
    return Progress(
        *columns,
        console=Console(file=stream),
        transient=True,
        auto_refresh=False,
        # other output goes above the bar, unless it goes to a file or is closed
        redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
        speed_estimate_period=SPEED_OVER,
    )
