"""The dense form by FlexAttention, PyTorch's fused kernel: softmax(log f(s) + c_i - c_j) is Fastmax with decays c.

It is compiled at the first call on a device. Where that fails, the batched tiles of pairs.py take over, and a message
says so once. Nothing is imported before.
"""

import logging
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastmax.backends.batched.work import Work
from fastmax.call import Call, OutputGrads
from fastmax.core import similarity

DEVICES = ("cuda", "xpu")


def refusal(call: Call) -> str | None:
    """Return why FlexAttention cannot compute a call, or None. The logarithm needs weights that are never negative."""
    options = call.options
    if options.order % 2:
        bounded = options.normalize != "none" and call.head_scale is None and call.dropout_seed is None
        if options.order != 1 or not bounded or abs(call.scale) * call.head_dim > 1:
            return f"weights of order {options.order} can be negative at scale {call.scale:.3g}"
    if call.drops_features:
        return "it never stores the features that dropout acts on"
    if call.cu_seqlens_q is not None:
        return "packed sequences take the factorized form"
    if call.dtype == torch.float64:
        return "it has no float64"
    if min(call.head_dim, call.value_dim) < 16 or max(call.head_dim, call.value_dim) > 256:
        return f"it takes heads of 16 to 256 channels, and there are {call.head_dim} and {call.value_dim}"
    if not call.q.numel() or not call.k.numel():
        return "there are no tokens"
    if call.state_in is not None or options.return_state:
        return "it has no state"
    return None


def function_for(call: Call) -> Callable[..., Any] | None:
    """Return the compiled FlexAttention for a call that it can compute here, or None."""
    if call.q.device.type not in DEVICES or refusal(call) is not None:
        return None
    return compiled(call.q.device.type)


@cache
def compiled(device: str) -> Callable[..., Any] | None:
    """Return FlexAttention compiled for a kind of device, or None where that does not work."""
    reason = "triton is not installed" if find_spec("triton") is None else None
    if reason is None:
        try:
            found = torch.compile(_function(), dynamic=True)
            x = torch.randn(1, 1, 128, 16, device=device, requires_grad=True)
            o, log_g = attend(FlexInputs(x, x, x, None, None, None), order=2, is_causal=True, function=found)
            torch.autograd.grad(o.sum() + log_g.sum(), x)
        except Exception as error:  # of a compiler, a driver, or a build of torch without them
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        else:
            return found
    logging.getLogger("fastmax").warning(
        "fastmax: FlexAttention cannot be compiled here, so short sequences take slower products: %s", reason
    )
    return None


class FlexInputs(NamedTuple):
    """Normalized queries (times the scale) and keys, values, and what their scores depend on."""

    q: Tensor  # (B, Hq, N, D)
    k: Tensor  # (B, Hkv, N, D)
    v: Tensor
    key_mask: Tensor | None  # (B, Hkv or 1, N)
    high: Tensor | None  # (B, Hkv, N): sums of log_decay, in two parts
    low: Tensor | None


def attend(
    inputs: FlexInputs, *, order: int, is_causal: bool, function: Callable[..., Any] | None = None
) -> tuple[Tensor, Tensor]:
    """Return o and log g."""
    q, k, v, key_mask, high, low = inputs
    groups = q.shape[1] // k.shape[1]
    smallest = torch.finfo(torch.float32).tiny

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        s = torch.log(similarity(s, order).clamp(min=smallest))
        if high is not None and low is not None:
            of = h // groups
            s = s + torch.clamp((high[b, of, i] - high[b, of, j]) + (low[b, of, i] - low[b, of, j]), max=0)
        if key_mask is not None:
            s = torch.where(key_mask[b, h // groups, j], s, -torch.inf)
        return s

    o, more = (function or _function())(
        q,
        k,
        v,
        score_mod=score,
        block_mask=_causal(q.shape[2], k.shape[2], q.device) if is_causal else None,
        scale=1.0,
        enable_gqa=groups > 1,
        return_aux=_log_g(),
    )
    return o, more.lse


@cache
def _log_g() -> Any:
    from torch.nn.attention.flex_attention import AuxRequest

    return AuxRequest(lse=True)


@cache
def _function() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention


@cache
def _causal(queries: int, keys: int, device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    def sees(_b: Tensor, _h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return i >= j

    return create_block_mask(sees, None, None, queries, keys, device=str(device))


def inputs_of(work: Work) -> FlexInputs:
    """Return the tensors of a prepared call of the dense form, whose only slot holds all tokens."""
    call = work.call
    kinds = {x.dtype for x in (call.q, call.k, call.v)}
    dtype = kinds.pop() if len(kinds) == 1 else call.dtype
    q, k, v = work.unstack(work.queries.x), work.keys.x, work.values[..., : call.value_dim]
    high = low = None
    if work.decays is not None:
        c = work.decays.squeeze(2)
        high = c.to(call.dtype)
        low = (c - high).to(call.dtype)
    q, k, v = (x.squeeze(2).to(dtype) for x in (q, k, v))
    return FlexInputs(q, k, v, call.key_mask, high, low)


def forward(work: Work, function: Callable[..., Any]) -> Tensor:
    """Return f = o g and g, as `Work.store` takes them: (B, Hkv, 1, G * N, J)."""
    options = work.call.options
    o, log_g = attend(inputs_of(work), order=options.order, is_causal=options.is_causal, function=function)
    g = log_g.to(work.call.dtype).exp().unsqueeze(-1)
    return work.stack(torch.cat([o * g, g], -1).unsqueeze(2))


def backward(
    work: Work, g: Tensor, grads: OutputGrads, function: Callable[..., Any]
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the gradients of q̂, k̂ and u in slots, and of the sums of log_decay."""
    options = work.call.options
    inputs = inputs_of(work)
    leaves = [x.detach().requires_grad_() for x in inputs[:3]]
    high = None if inputs.high is None else inputs.high.detach().requires_grad_()
    with torch.enable_grad():
        given = inputs._replace(q=leaves[0], k=leaves[1], v=leaves[2], high=high)
        o, log_g = attend(given, order=options.order, is_causal=options.is_causal, function=function)
    do = torch.zeros_like(o) if grads.o is None else grads.o.to(o.dtype)
    d_log_g = torch.zeros_like(log_g) if grads.g is None else (grads.g * g).to(log_g.dtype)
    dq, dk, dv, *dc = torch.autograd.grad([o, log_g], [*leaves, *([] if high is None else [high])], [do, d_log_g])
    dq, dk, dv = (x.to(work.call.dtype).unsqueeze(2) for x in (dq, dk, dv))
    du = torch.nn.functional.pad(dv, (0, work.columns - work.call.value_dim))
    return work.stack(dq), dk, du, dc[0] if dc else None
