"""Ctrl-C and SIGTERM: quiet, in order, and with the exit codes that shells expect."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

STOPPED = 128 + signal.SIGINT


@dataclass
class Signals:
    """What came while a command ran."""

    interrupted: bool = False


def leave_at_once() -> None:
    """Ctrl-C ends the process where it stands. For the time of imports: nothing is begun yet, and much of what is imported
    would swallow a KeyboardInterrupt or raise something else."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may have had it ignored
        signal.signal(signal.SIGINT, lambda *_: os._exit(STOPPED))


@contextmanager
def in_order() -> Iterator[Signals]:
    """Both signals unwind the stack, so that half-made files and locks are cleaned up.

    Ctrl-C is remembered: an import that it interrupts may raise something else than KeyboardInterrupt.
    """
    signals = Signals()
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield signals
        return

    def terminate(*_: object) -> NoReturn:
        raise SystemExit(128 + signal.SIGTERM)

    def interrupt(*_: object) -> NoReturn:
        signals.interrupted = True
        raise KeyboardInterrupt

    def unraisable(problem: Any) -> None:
        """What a destructor could not raise; an interrupt there is no news."""
        if not isinstance(problem.exc_value, KeyboardInterrupt):
            before_hook(problem)

    before_hook, sys.unraisablehook = sys.unraisablehook, unraisable
    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, terminate)}
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, interrupt)
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = before_hook
