"""Backends: modules that compute the same attention on raw tensors, and the rule that picks one. Imported when first needed.

A backend is a module with `describe() -> str` (for people: what it is, or why it is missing), `unsupported(call) -> str |
None` (why it cannot run it, or None), `forward(call, plan) -> (o, g, state_out)` and `backward(call, plan, o, g, grads) ->
InputGrads`. It may fuse the normalization and the division; it defines no semantics. Backends do not import one another.

Only native has log_decay without a causal mask in one pass (`native.fades_both_ways`). Elsewhere such a call becomes two
causal ones (both_directions.py).

It may have `prepare(call) -> Prepared | None`, a call that is checked and packed except for its tensors;
`differentiable(call) -> o | None`, an output whose gradients autograd has from PyTorch's own operations; and
`can_step(...)` with `prepare_step(...)`, one token of decoding (defined in state/decode.py).
"""

from functools import cache
from importlib import import_module
from typing import Any, Protocol

from torch import Tensor

from fastmax.call import Call, InputGrads, OutputGrads
from fastmax.plan import Plan

NAMES = ("native", "triton", "batched", "chunked")
"""The fastest first: "auto" takes the first that supports the call. chunked supports every one."""


class Backend(Protocol):
    def describe(self) -> str: ...

    def unsupported(self, _: Call, /) -> str | None: ...

    def forward(self, call: Call, plan: Plan) -> tuple[Tensor, Tensor, Tensor]: ...

    def backward(self, call: Call, plan: Plan, o: Tensor, g: Tensor, grads: OutputGrads) -> InputGrads: ...


class Prepared(Protocol):
    """A call for tensors of the shapes, strides and dtypes that it was made for. It refuses invalid decays."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None) -> Tensor: ...

    def forward_for_grads(
        self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return o, g and the sums that the backward pass reads again, if any."""

    def backward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_decay: Tensor | None,
        o: Tensor,
        g: Tensor,
        more: Tensor | None,
        do: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]: ...


@cache
def load(name: str) -> Backend:
    module: Any = import_module(f"fastmax.backends.{name}")
    return module  # type: ignore[no-any-return]


def resolve(call: Call) -> Backend:
    """Return the backend that the call names, or the first that can run it. A named one that cannot raises ValueError."""
    name = call.options.backend
    if name == "auto":
        for each in NAMES:
            backend = load(each)
            if backend.unsupported(call) is None:
                return backend
    backend = load(name)
    reason = backend.unsupported(call)
    if reason is not None:
        raise ValueError(f'backend="{name}" cannot run this call: {reason}; backend="auto" picks one that can')
    return backend
