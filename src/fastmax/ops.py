"""The custom ops fastmax::forward and fastmax::backward: schema, fake kernels, autograd, vmap. Opaque to compilers.

All of it is derived from the fields of `Call`, `Options` and `InputGrads`.
"""

from typing import Any

import torch
from torch import Tensor

from fastmax import validation
from fastmax._torch_private import has_tangent
from fastmax.backends import Backend, resolve
from fastmax.call import TENSORS, Call, InputGrads, OutputGrads, schema
from fastmax.decay import check_decays, grads_within_bound
from fastmax.plan import RULE, Plan

_RETURNS = ", ".join(["Tensor"] * len(InputGrads._fields))
_OUTPUTS_AND_GRADS = "Tensor o, Tensor g, Tensor? state, Tensor? do, Tensor? dg, Tensor? d_state"
_OUTPUTS = _OUTPUTS_AND_GRADS.count(",") + 1


def attend(call: Call, *, transformed: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output, its denominators and the state by the op; `transformed` if torch.func is active."""
    if has_tangent([x for x in call.flatten()[: len(TENSORS)] if x is not None]):
        refuse_tangents()
    o, g, state = (_Transformed.apply if transformed else forward)(*call.flatten())  # type: ignore[no-untyped-call]
    return o, g, state


def refuse_tangents() -> None:
    """Raise an error: a custom op would silently drop forward-mode tangents."""
    raise NotImplementedError(
        "fastmax_attention has no forward-mode derivative; fastmax.reference_attention has one, in O(N^2)"
    )


def check_values(call: Call) -> None:
    """Check what depends on the data, unless reading it would stall a device."""
    if call.cu_seqlens_q is not None and call.cu_seqlens_k is not None:
        validation.cu_seqlens("cu_seqlens_q", call.cu_seqlens_q, call.q.shape[2])
        validation.cu_seqlens("cu_seqlens_k", call.cu_seqlens_k, call.k.shape[2])
        if call.log_decay is not None and call.q.shape[2]:
            validation.same_sequences(call.cu_seqlens_q, call.cu_seqlens_k)
    if call.head_scale is not None and call.head_scale.device.type == "cpu":
        validation.head_scale(call.head_scale)
    if call.log_decay is not None and call.log_decay.device.type == "cpu":
        check_decays(call.log_decay)


@torch.library.custom_op("fastmax::forward", mutates_args=(), schema=f"({schema()}) -> (Tensor, Tensor, Tensor)")
def forward(*values: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return o, the denominator g, and state_out, of size 0 unless asked for."""
    call = Call.unflatten(values)
    check_values(call)
    return resolve(call).forward(call, RULE)


@forward.register_fake
def _(*values: Any) -> tuple[Tensor, Tensor, Tensor]:
    return Call.unflatten(values).new_outputs()


@torch.library.custom_op(
    "fastmax::backward", mutates_args=(), schema=f"({_OUTPUTS_AND_GRADS}, {schema()}) -> ({_RETURNS})"
)
def backward(*values: Any) -> InputGrads:
    """Return the gradients of the inputs, of size 0 where there is no such input."""
    call = Call.unflatten(values[_OUTPUTS:])
    return gradients(resolve(call), RULE, call, *values[:_OUTPUTS])


@backward.register_fake
def _(*values: Any) -> InputGrads:
    return InputGrads.empty(Call.unflatten(values[_OUTPUTS:]))


def gradients(
    backend: Backend,
    plan: Plan,
    call: Call,
    o: Tensor,
    g: Tensor,
    state: Tensor | None,
    do: Tensor | None,
    dg: Tensor | None,
    d_state: Tensor | None,
) -> InputGrads:
    """Return a backend's gradients, with the steps that are the same for all backends."""
    d_state = d_state if call.options.return_state else None
    found = backend.backward(call, plan, o, g, OutputGrads(do, dg, d_state))
    if call.log_decay is not None and d_state is not None and state is not None:
        # the returned state has decayed by all tokens of its sequence, each of which gets an equal part of its gradient
        per_state = (d_state * state).sum((-2, -1)).to(found.log_decay.dtype)
        if call.cu_seqlens_k is None:
            share = per_state.unsqueeze(-1)
        else:
            share = per_state.repeat_interleave(call.cu_seqlens_k.diff(), 0, output_size=call.k.shape[2]).mT.unsqueeze(
                0
            )
        found.log_decay.add_(share)
    if call.log_decay is not None:
        found = found._replace(log_decay=grads_within_bound(found.log_decay, call.log_decay))
    return found


def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    """Save what the backward pass needs: the tensors of the call, o, g, and the state if its decay has a gradient."""
    o, g, state = output
    tensors = inputs[: len(TENSORS)]
    decays = tensors[TENSORS.index("log_decay")] is not None
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(o, g, state if decays else None, *tensors)
    ctx.options = inputs[len(TENSORS) :]


def by_input(found: InputGrads, tensors: tuple[Tensor | None, ...]) -> list[Tensor | None]:
    """Return gradients in the order of the tensors of a call, None without such a tensor or gradient."""
    named = found._asdict()
    return [None if x is None else named.get(name) for name, x in zip(TENSORS, tensors, strict=True)]


def _differentiate(ctx: Any, do: Tensor | None, dg: Tensor | None, d_state: Tensor | None) -> tuple[Any, ...]:
    return _input_grads(ctx, backward, do, dg, d_state)


def _input_grads(ctx: Any, op: Any, *grads: Tensor | None) -> tuple[Any, ...]:
    o, g, state, *tensors = ctx.saved_tensors
    found = op(o, g, state, *grads, *tensors, *ctx.options)
    return *by_input(InputGrads(*found), tuple(tensors)), *[None] * len(ctx.options)


def _refuse(*_: Any) -> None:
    raise RuntimeError(
        "fastmax_attention has no second derivative: it was differentiated with create_graph=True and then once more. "
        "fastmax.reference_attention supports it, in O(N^2)"
    )


forward.register_autograd(_differentiate, setup_context=save)
backward.register_autograd(_refuse)


class _Transformed(torch.autograd.Function):
    """The op for torch.func, which cannot look into the autograd of a custom op; vmap goes by the rules of the ops."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*values: Any) -> tuple[Tensor, Tensor, Tensor]:
        return forward(*values)  # type: ignore[no-any-return]

    setup_context = staticmethod(save)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _input_grads(ctx, _TransformedBackward.apply, *grads)

    @staticmethod
    def jvp(*_: Any) -> None:
        refuse_tangents()


class _TransformedBackward(torch.autograd.Function):
    """The same for the gradients, which torch.func always follows."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*values: Any) -> tuple[Tensor, ...]:
        return tuple(backward(*values))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def backward(_: Any, *grads: Any) -> Any:
        _refuse(*grads)

    @staticmethod
    def jvp(_: Any, *tangents: Any) -> Any:
        _refuse(*tangents)


_MERGED = ("q", "k", "v", "log_decay", "key_mask", "state_in")
"""Tensors of a call whose first dimension is the batch: vmap's dimension becomes a part of it."""


def _vmap(op: Any, outputs: int, info: Any, in_dims: tuple[int | None, ...], values: tuple[Any, ...]) -> Any:
    """Run a batch of calls as one call with a larger batch, or one by one if they differ in more than that.

    The first `outputs` values are results of the forward pass and their gradients, with a batch as well.
    """
    call_dims = dict(zip(TENSORS, in_dims[outputs:], strict=False))
    call = dict(zip(TENSORS, values[outputs:], strict=False))
    merges = all(dim is None or name in _MERGED for name, dim in call_dims.items()) and call["cu_seqlens_q"] is None
    summed = outputs > 0 and call["head_scale"] is not None  # its gradient is a sum over the batch
    size = info.batch_size
    if not merges or summed or call["dropout_seed"] is not None or size == 0:
        each = [
            op(*(x if dim is None else x.select(dim, i) for x, dim in zip(values, in_dims, strict=True)))
            for i in range(size)
        ]
        return tuple(torch.stack(part) for part in zip(*each, strict=True)), (0,) * len(each[0])
    names = ["o"] * outputs + list(TENSORS)
    batched: list[Any] = []
    for position, (x, dim) in enumerate(zip(values, in_dims, strict=True)):
        has_batch = position < len(names) and (position < outputs or names[position] in _MERGED)
        if isinstance(x, Tensor) and has_batch and x.dim() > (dim is not None) + 1:
            x = x.unsqueeze(0).expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
            x = x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])
        batched.append(x)
    results = op(*batched)
    # a result of size 0 stands for none, and has no batch
    split = [x.unflatten(0, (size, -1)) if x.dim() > 1 else x for x in results]
    return tuple(split), tuple(0 if x.dim() > 1 else None for x in results)


@forward.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *values: Any) -> Any:
    return _vmap(forward, 0, info, in_dims, values)


@backward.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *values: Any) -> Any:
    return _vmap(backward, _OUTPUTS, info, in_dims, values)
