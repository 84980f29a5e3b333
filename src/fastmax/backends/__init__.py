"""Backends: modules that compute the same attention on raw tensors, and the rule that picks one.

A backend is a module with `describe() -> str` (for people: what it is, or why it is missing), `unsupported(problem) -> str
| None` (why it cannot run it, or None), `forward(problem) -> (o, g, state_out)` and `backward(problem, o, g, grads) ->
InputGrads`. It may fuse the standardization and the division; it defines no semantics. Backends do not import one another.
"""

from typing import Protocol

from torch import Tensor

from fastmax.backends import chunked, native
from fastmax.call import InputGrads, OutputGrads, Problem


class Backend(Protocol):
    def describe(self) -> str: ...

    def unsupported(self, _: Problem, /) -> str | None: ...

    def forward(self, p: Problem) -> tuple[Tensor, Tensor, Tensor]: ...

    def backward(self, p: Problem, o: Tensor, g: Tensor, grads: OutputGrads) -> InputGrads: ...


BACKENDS: dict[str, Backend] = {"native": native, "chunked": chunked}
"""By name, the fastest first: "auto" takes the first that supports the problem. chunked supports every one."""


def resolve(name: str, p: Problem) -> Backend:
    """The backend of that name, or the first that can; one asked for by name works or raises."""
    if name == "auto":
        for backend in BACKENDS.values():
            if backend.unsupported(p) is None:
                return backend
    reason = BACKENDS[name].unsupported(p)
    if reason is not None:
        raise ValueError(f'backend="{name}" cannot run this call: {reason}; backend="auto" picks one that can')
    return BACKENDS[name]
