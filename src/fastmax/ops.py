"""The custom ops fastmax::forward and fastmax::backward: schema, fake kernels, autograd. Opaque to compilers."""

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fastmax import validation
from fastmax._torch_private import unwatched
from fastmax.backends import resolve
from fastmax.call import InputGrads, OutputGrads, Problem

# The fields of `Problem`, in its order, and the name of the backend.
_CALL = (
    "Tensor q, Tensor k, Tensor v, int order, bool is_causal, bool normalize, float scale, bool return_state, "
    "ScalarType out_dtype, float dropout_p, str dropout_mode, Tensor? head_scale, Tensor? key_mask, "
    "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? state_in, Tensor? dropout_seed, str backend"
)
_FIELDS = tuple(field.name for field in fields(Problem))
_OUTPUTS_AND_GRADS = "Tensor o, Tensor g, Tensor? do, Tensor? dg, Tensor? d_state"


def attend(p: Problem, backend: str) -> tuple[Tensor, Tensor]:
    """The output and the state of a problem, differentiable in its tensors."""
    if unwatched(*(x for x in (p.q, p.k, p.v, p.head_scale, p.key_mask, p.state_in) if x is not None)):
        _check_values(p)
        o, _, state = resolve(backend, p).forward(p)
    else:
        _refuse_tangents(p)
        o, _, state = forward(*(getattr(p, name) for name in _FIELDS), backend)
    return o, state


def _refuse_tangents(p: Problem) -> None:
    """A custom op drops forward-mode tangents without a word."""
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:
        return
    tensors = [x for x in (p.q, p.k, p.v, p.head_scale, p.state_in) if x is not None]
    if any(forward_ad.unpack_dual(x).tangent is not None for x in tensors):  # type: ignore[no-untyped-call]
        raise NotImplementedError(
            "fastmax_attention has no forward-mode derivative; fastmax.reference_attention has one, in O(N^2)"
        )


@torch.library.custom_op("fastmax::forward", mutates_args=(), schema=f"({_CALL}) -> (Tensor, Tensor, Tensor)")
def forward(*call: Any) -> tuple[Tensor, Tensor, Tensor]:
    """o, the denominator g, and state_out, of size 0 unless asked for."""
    *values, backend = call
    p = Problem(*values)
    _check_values(p)
    return resolve(backend, p).forward(p)


@forward.register_fake
def _(*call: Any) -> tuple[Tensor, Tensor, Tensor]:
    return Problem(*call[:-1]).new_outputs()


@torch.library.custom_op(
    "fastmax::backward",
    mutates_args=(),
    schema=f"({_OUTPUTS_AND_GRADS}, {_CALL}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def backward(*call: Any) -> InputGrads:
    """The gradients of q, k, v, head_scale and state_in; the last two of size 0 where there is no such input."""
    o, g, do, dg, d_state, *values, backend = call
    p = Problem(*values)
    return resolve(backend, p).backward(p, o, g, OutputGrads(do, dg, d_state if p.return_state else None))


@backward.register_fake
def _(*call: Any) -> InputGrads:
    return InputGrads.empty(Problem(*call[5:-1]))


def _check_values(p: Problem) -> None:
    """Checks that must read the data: made where it is at hand, and only where reading it does not stall a device."""
    if p.cu_seqlens_q is not None and p.cu_seqlens_k is not None:
        validation.cu_seqlens("cu_seqlens_q", p.cu_seqlens_q, p.q.shape[2])
        validation.cu_seqlens("cu_seqlens_k", p.cu_seqlens_k, p.k.shape[2])
    if p.head_scale is not None and p.head_scale.device.type == "cpu":
        validation.head_scale(p.head_scale)


# Where the options end and the optional tensors begin in a call, after q, k and v.
_OPTIONAL = _FIELDS.index("head_scale")


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *values, backend = inputs
    o, g, _ = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(o, g, *values[:3], *values[_OPTIONAL:])
    ctx.options = values[3:_OPTIONAL]
    ctx.backend = backend


def _differentiate(ctx: Any, do: Tensor | None, dg: Tensor | None, d_state: Tensor | None) -> tuple[Any, ...]:
    o, g, q, k, v, *optional = ctx.saved_tensors
    found = backward(o, g, do, dg, d_state, q, k, v, *ctx.options, *optional, ctx.backend)
    grads = dict.fromkeys(_FIELDS) | dict(zip(("q", "k", "v", "head_scale", "state_in"), found, strict=True))
    for name, x in zip(_FIELDS[_OPTIONAL:], optional, strict=True):
        if x is None:
            grads[name] = None
    return *grads.values(), None


forward.register_autograd(_differentiate, setup_context=_save)


def _refuse(*_: Any) -> None:
    raise RuntimeError(
        "fastmax_attention has no second derivative: it was differentiated with create_graph=True and then once more. "
        "fastmax.reference_attention supports it, in O(N^2)"
    )


backward.register_autograd(_refuse)
