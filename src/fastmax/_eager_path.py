"""The path of eager calls that only autograd may intercept: straight to a backend, with a cache of prepared calls.

The dispatcher and the checks in Python take longer than a short attention. For a call that has only queries, keys, values and
decays, the checks depend on its options, shapes, strides and dtypes alone. These are the key of the cache. A backend that
offers `prepare` turns such a call into one that only takes tensors.
"""

from typing import Any

import torch
from torch import Tensor

from fastmax import ops
from fastmax._torch_private import AUTOGRAD, NO_WATCHER, find_watcher
from fastmax.backends import Backend, Prepared, resolve
from fastmax.call import Call, InputGrads, Options
from fastmax.plan import RULE, Plan

MAX_PREPARED_CALLS = 256
"""Capacity of the cache, which is cleared when it is full."""

_PLAIN = frozenset(tuple(map(type, Options(scale=scale))) for scale in (None, 1.0))
"""The types of options in a key: equal values of other types, such as 1 and True, must not share an entry."""

_prepared: dict[Any, Prepared] = {}
_NOTHING = torch.empty(0)


def find_prepared_call(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor | None, options: Options, watcher: int
) -> tuple[Any, Prepared | None]:
    """Return the key of a call and the prepared call of that key. Each is None if there is none.

    A call has a key if it has no other tensors, no dropout, no returned state and no options of unusual types.
    """
    if watcher > AUTOGRAD or torch.is_autocast_enabled("cpu"):  # first, because a compiler cannot trace what follows
        return None, None
    if options.dropout_p or options.return_state or tuple(map(type, options)) not in _PLAIN:
        return None, None
    found: Any = (
        options, query.shape, query.stride(), query.dtype, key.shape, key.stride(), key.dtype,
        value.shape, value.stride(), value.dtype,
    )  # fmt: skip
    if log_decay is None:
        return found, _prepared.get(found)
    found = (*found, log_decay.shape, log_decay.stride(), log_decay.dtype)
    prepared = _prepared.get(found)
    if prepared is None:
        # only decays that `bind` leaves as they are
        usual = log_decay.dtype == query.dtype == key.dtype == value.dtype and key.dim() == 4
        if not usual or log_decay.shape != key.shape[:3] or log_decay.dtype not in (torch.float32, torch.float64):
            return None, None
    return found, prepared


def run_prepared_call(
    prepared: Prepared, query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor | None, watcher: int
) -> Tensor:
    """Return the output of a prepared call on new tensors."""
    if watcher == NO_WATCHER:
        return prepared.forward(query, key, value, log_decay)
    return _EagerPrepared.apply(prepared, query, key, value, log_decay)  # type: ignore[no-untyped-call, no-any-return]


def run_call(call: Call, watcher: int, cache_key: Any = None, plan: Plan = RULE) -> tuple[Tensor, Tensor, Tensor]:
    """Return o, g and the state. With a `cache_key` the call is prepared and cached, and g and the state are empty."""
    if call.cu_seqlens_q is not None or call.head_scale is not None or call.log_decay is not None:
        ops.check_values(call)
    backend = resolve(call)
    prepare = None if cache_key is None else getattr(backend, "prepare", None)
    prepared = None if prepare is None else prepare(call)
    if prepared is not None:
        if len(_prepared) >= MAX_PREPARED_CALLS:
            _prepared.clear()
        _prepared[cache_key] = prepared
        o = run_prepared_call(prepared, call.q, call.k, call.v, call.log_decay, watcher)
        return o, _NOTHING, _NOTHING
    if watcher == NO_WATCHER:
        return backend.forward(call, plan)
    return _Eager.apply(backend, plan, *call.flatten())  # type: ignore[no-untyped-call, no-any-return]


def run_on_device(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Return o, g and the state by the op, or o alone by the differentiable form, if the backend has one for the call."""
    attend = getattr(resolve(call), "differentiable", None)
    o = None if attend is None else attend(call)
    return ops.attend(call) if o is None else (o, _NOTHING, _NOTHING)


def clear_prepared_calls() -> None:
    """Empty the cache."""
    _prepared.clear()


def count_prepared_calls() -> int:
    """Return the number of calls in the cache."""
    return len(_prepared)


class _Eager(torch.autograd.Function):
    """The autograd of the op without the dispatcher. The backend that ran forward runs backward."""

    @staticmethod
    def forward(ctx: Any, backend: Backend, plan: Plan, *values: Any) -> Any:
        output = backend.forward(Call.unflatten(values), plan)
        ctx.backend, ctx.plan = backend, plan
        ops.save(ctx, values, output)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        o, g, state, *tensors = ctx.saved_tensors
        if _needs_op(grads):
            found: Any = ops.backward(o, g, state, *grads, *tensors, *ctx.options)
        else:
            call = Call.unflatten((*tensors, *ctx.options))
            found = ops.gradients(ctx.backend, ctx.plan, call, o, g, state, *grads)
        return None, None, *ops.by_input(InputGrads(*found), tuple(tensors)), *[None] * len(ctx.options)


class _EagerPrepared(torch.autograd.Function):
    """The autograd of a prepared call."""

    @staticmethod
    def forward(ctx: Any, prepared: Prepared, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None) -> Any:
        o, g, total = prepared.forward_for_grads(q, k, v, log_decay)
        ctx.prepared = prepared
        ctx.save_for_backward(q, k, v, log_decay, o, g, total)
        return o

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        q, k, v, log_decay, o, g, total = ctx.saved_tensors
        if _needs_op(grads):
            call = ctx.prepared.call(q, k, v, log_decay)
            every = InputGrads(*ops.backward(o, g, None, grads[0], None, None, *call.flatten()))
            found: Any = *every[:3], None if log_decay is None else every.log_decay
        else:
            found = ctx.prepared.backward(q, k, v, log_decay, o, g, total, grads[0])
        return None, *found


def _needs_op(grads: tuple[Tensor | None, ...]) -> bool:
    """Return True if the backward pass must be an op: its graph is wanted, or a tracer or mode is active now."""
    return torch.is_grad_enabled() or find_watcher([x for x in grads if x is not None]) != NO_WATCHER
