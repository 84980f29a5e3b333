"""Calls that nobody but autograd watches: straight to a backend, and remembered.

The dispatcher, and asking in Python what every argument is, takes longer than a short attention. The answers depend on the
options, shapes, strides and dtypes of a call alone, if it has nothing but queries, keys, values and decays: equal keys, equal
answers. A backend that offers `prepare` turns such a call into one that only waits for data.
"""

from typing import Any

import torch
from torch import Tensor

from fastmax import ops
from fastmax._torch_private import AUTOGRAD, NOBODY, watchers
from fastmax.backends import Backend, Prepared, resolve
from fastmax.call import Call, InputGrads, Options
from fastmax.plan import RULE, Plan

MOST = 256
"""Calls that are remembered; then all are forgotten."""

_PLAIN = frozenset(tuple(map(type, Options(scale=scale))) for scale in (None, 1.0))
"""The types of options that are compared by value without taking 1 for True."""

_prepared: dict[Any, Prepared] = {}
_NOTHING = torch.empty(0)


def known(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor | None, options: Options, watch: int
) -> tuple[Any, Prepared | None]:
    """What such a call is remembered by, and what is known of it. None where there is more to it, or an unusual type."""
    if watch > AUTOGRAD or torch.is_autocast_enabled("cpu"):  # first: a compiler cannot follow the comparison of types
        return None, None
    if options.dropout_p or options.return_state or tuple(map(type, options)) not in _PLAIN:
        return None, None
    found: Any = (
        options, query.shape, query.stride(), query.dtype, key.shape, key.stride(), key.dtype,
        value.shape, value.stride(), value.dtype,
    )  # fmt: skip
    if log_decay is not None:
        # as a call has it when it is bound; o keeps its dtype
        usual = options.is_causal and log_decay.dtype == query.dtype == key.dtype == value.dtype and key.dim() == 4
        if not usual or log_decay.shape != key.shape[:3] or log_decay.dtype not in (torch.float32, torch.float64):
            return None, None
        found = (*found, log_decay.stride())
    return found, _prepared.get(found)


def again(
    prepared: Prepared, query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor | None, watch: int
) -> Tensor:
    """The output of a call like one before."""
    if watch == NOBODY:
        return prepared.forward(query, key, value, log_decay)
    return _Again.apply(prepared, query, key, value, log_decay)  # type: ignore[no-untyped-call, no-any-return]


def attend(call: Call, watch: int, key: Any = None, plan: Plan = RULE) -> tuple[Tensor, Tensor, Tensor]:
    """o, g and the state; remembered under `key` if there is one, and then nothing but o."""
    if call.cu_seqlens_q is not None or call.head_scale is not None or call.log_decay is not None:
        ops.check_values(call)
    backend = resolve(call)
    prepare = None if key is None else getattr(backend, "prepare", None)
    prepared = None if prepare is None else prepare(call)
    if prepared is not None:
        if len(_prepared) >= MOST:
            _prepared.clear()
        _prepared[key] = prepared
        o = again(prepared, call.q, call.k, call.v, call.log_decay, watch)
        return o, _NOTHING, _NOTHING
    if watch == NOBODY:
        return backend.forward(call, plan)
    return _Eager.apply(backend, plan, *call.flatten())  # type: ignore[no-untyped-call, no-any-return]


def forget() -> None:
    """All calls that were remembered."""
    _prepared.clear()


def remembered() -> int:
    return len(_prepared)


class _Eager(torch.autograd.Function):
    """As the autograd of the op, without the dispatcher; the backend that ran forward runs backward."""

    @staticmethod
    def forward(ctx: Any, backend: Backend, plan: Plan, *values: Any) -> Any:
        output = backend.forward(Call.unflatten(values), plan)
        ctx.backend, ctx.plan = backend, plan
        ops.save(ctx, values, output)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        o, g, state, *tensors = ctx.saved_tensors
        if _watched(grads):
            found: Any = ops.backward(o, g, state, *grads, *tensors, *ctx.options)
        else:
            call = Call.unflatten((*tensors, *ctx.options))
            found = ops.gradients(ctx.backend, ctx.plan, call, o, g, state, *grads)
        return None, None, *ops.by_input(InputGrads(*found), tuple(tensors)), *[None] * len(ctx.options)


class _Again(torch.autograd.Function):
    """The same for a prepared call."""

    @staticmethod
    def forward(ctx: Any, prepared: Prepared, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None) -> Any:
        o, g, total = prepared.forward_for_grads(q, k, v, log_decay)
        ctx.prepared = prepared
        ctx.save_for_backward(q, k, v, log_decay, o, g, total)
        return o

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        q, k, v, log_decay, o, g, total = ctx.saved_tensors
        if _watched(grads):
            call = ctx.prepared.call(q, k, v, log_decay)
            all_of_them = InputGrads(*ops.backward(o, g, None, grads[0], None, None, *call.flatten()))
            found: Any = *all_of_them[:3], None if log_decay is None else all_of_them.log_decay
        else:
            found = ctx.prepared.backward(q, k, v, log_decay, o, g, total, grads[0])
        return None, *found


def _watched(grads: tuple[Tensor | None, ...]) -> bool:
    """Whether the op must be called in the backward pass: a graph of it is wanted, or somebody came in meanwhile."""
    return torch.is_grad_enabled() or watchers([x for x in grads if x is not None]) != NOBODY
