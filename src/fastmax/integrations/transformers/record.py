"""A recorder of the modules that call the attention function, with the result for each."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import nn

FASTMAX, SLIDING, WINDOW, REFUSED = "fastmax", "softmax, sliding window", "softmax, window", "refused"

Calls = dict[nn.Module, str]

_calls: ContextVar[Calls | None] = ContextVar("calls", default=None)


@contextmanager
def recording() -> Iterator[Calls]:
    """Return a dictionary that fills with what the attention function did, by module."""
    calls: Calls = {}
    token = _calls.set(calls)
    try:
        yield calls
    finally:
        _calls.reset(token)


def note(module: nn.Module, what: str) -> None:
    if torch.compiler.is_compiling():  # compilers do not follow context variables
        return
    calls = _calls.get()
    if calls is not None:
        calls[module] = what
