"""The dense form by FlexAttention, PyTorch's fused kernel: softmax(log f(s) + c_i - c_j) is Fastmax with decays c.

What is done to inputs and outputs is compiled with it, so that each of q, k, v and o is read and written once. For gradients
autograd computes the forward pass again, because PyTorch 2.13 does not compile the gradient of FlexAttention alone.

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

from fastmax.call import Call, InputGrads, OutputGrads
from fastmax.core import normalized, similarity
from fastmax.decay import bounded, log_decay_grads, wide

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


class FlexInputs(NamedTuple):
    """The raw inputs of a call, the factors of tokens that dropout leaves, and sums of log_decay in two parts."""

    q: Tensor  # (B, Hq, N, D)
    k: Tensor  # (B, Hkv, N, D)
    v: Tensor
    head_scale: Tensor | None = None
    key_mask: Tensor | None = None  # (B, Hkv or 1, N)
    kept_q: Tensor | None = None  # (B, Hq, N, 1)
    kept_k: Tensor | None = None
    high: Tensor | None = None  # (B, Hkv, N)
    low: Tensor | None = None


class Settings(NamedTuple):
    """The plain values of a call that are compiled in."""

    order: int
    is_causal: bool
    normalize: str
    scale: float


Attend = Callable[[FlexInputs, Settings, Any], tuple[Tensor, Tensor]]


def function_for(call: Call) -> Attend | None:
    """Return the compiled `attend` for a call that it can compute here, or None."""
    if call.q.device.type not in DEVICES or refusal(call) is not None:
        return None
    return compiled(call.q.device.type)


@cache
def compiled(device: str) -> Attend | None:
    """Return `attend` compiled for a kind of device, or None where that does not work."""
    reason = "triton is not installed" if find_spec("triton") is None else None
    if reason is None:
        try:
            found = torch.compile(attend, dynamic=True)
            x = torch.randn(1, 1, 128, 16, device=device, requires_grad=True)
            mask = _block_mask(128, 128, x.device)
            torch.autograd.grad(found(FlexInputs(x, x, x), Settings(2, True, "standardize", 1.0), mask)[0].sum(), x)
        except Exception as error:  # of a compiler, a driver, or a build of torch without them
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        else:
            return found
    logging.getLogger("fastmax").warning(
        "fastmax: FlexAttention cannot be compiled here, so short sequences take slower products: %s", reason
    )
    return None


def forward(call: Call, function: Attend) -> tuple[Tensor, Tensor, Tensor]:
    """Return o, g and no state."""
    o, g, state = call.new_outputs()
    found = function(_inputs_of(call), _settings_of(call), _mask_of(call))
    return _as(o, found[0]), _as(g, found[1]), state


def backward(call: Call, grads: OutputGrads, function: Attend) -> InputGrads:
    """Return the gradients of the raw inputs."""
    out, inputs = InputGrads.empty(call), _inputs_of(call)
    given = {name: getattr(inputs, name) for name in ("q", "k", "v", "head_scale", "high")}
    leaves = {name: x.detach().requires_grad_() for name, x in given.items() if x is not None}
    with torch.enable_grad():
        outputs = function(inputs._replace(**leaves), _settings_of(call), _mask_of(call))
    d_outputs = [torch.zeros_like(x) if d is None else d.to(x.dtype) for x, d in zip(outputs, grads[:2], strict=True)]
    found = dict(zip(leaves, torch.autograd.grad(outputs, [*leaves.values()], d_outputs), strict=True))
    if call.log_decay is not None:
        found["log_decay"] = log_decay_grads(found.pop("high"))
    return out._replace(**{name: _as(getattr(out, name), x) for name, x in found.items()})


def _as(expected: Tensor, found: Tensor) -> Tensor:
    """Return what was found in the dtype and memory layout that are expected."""
    is_same = (found.dtype, found.stride()) == (expected.dtype, expected.stride())
    return found if is_same else expected.copy_(found)


def _settings_of(call: Call) -> Settings:
    return Settings(call.options.order, call.options.is_causal, call.options.normalize, call.scale)


def _inputs_of(call: Call) -> FlexInputs:
    masks = call.dropout_masks()
    kept_q, kept_k = (None, None) if masks is None else (x.token_factors(0, x.add.shape[-1], call.dtype) for x in masks)
    key_mask = None if call.key_mask is None else call.key_mask.expand(-1, call.k.shape[1], -1)
    high = low = None
    if call.log_decay is not None:
        c = bounded(call.log_decay).to(wide(call.q.device)).cumsum(-1)
        high = c.to(call.dtype)
        low = (c - high).to(call.dtype)
    return FlexInputs(call.q, call.k, call.v, call.head_scale, key_mask, kept_q, kept_k, high, low)


def _mask_of(call: Call) -> Any:
    return _block_mask(call.q.shape[2], call.k.shape[2], call.q.device) if call.options.is_causal else None


@cache
def _block_mask(queries: int, keys: int, device: torch.device) -> Any:
    """Return the causal mask."""
    from torch.nn.attention.flex_attention import create_block_mask

    def sees(_b: Tensor, _h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return i >= j

    return create_block_mask(sees, None, None, queries, keys, device=str(device))


def attend(inputs: FlexInputs, settings: Settings, mask: Any) -> tuple[Tensor, Tensor]:
    """Return o and g of raw inputs."""
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    queries, keys, values = _prepared(inputs, settings)
    o, more = flex_attention(
        queries,
        keys,
        values,
        score_mod=_score(inputs, settings),
        block_mask=mask,
        scale=1.0,
        enable_gqa=queries.shape[1] > keys.shape[1],
        return_aux=AuxRequest(lse=True),
    )
    assert more.lse is not None
    g = more.lse.exp()
    o = torch.where(g.unsqueeze(-1) == 0, 0, o)
    if settings.is_causal:
        first = _first_not_finite(inputs).repeat_interleave(queries.shape[1] // keys.shape[1], 1)
        o = torch.where(_positions(inputs.q) >= first, torch.nan, o)
    return o, g


def _prepared(inputs: FlexInputs, settings: Settings) -> tuple[Tensor, Tensor, Tensor]:
    """Return normalized queries times the scale, normalized keys, and values, without those that are not finite."""
    q, k, v = inputs[:3]
    dtype = q.dtype if q.dtype == k.dtype == v.dtype else torch.float32
    keep = None if inputs.key_mask is None else inputs.key_mask.unsqueeze(-1)
    if keep is not None:
        k, v = torch.where(keep, k, 0), torch.where(keep, v, 0)
    if settings.is_causal:  # zero times infinity is NaN in tiles that causality hides in part
        k, v = torch.where(_are_finite(k), k, 0), torch.where(v.isfinite(), v, 0)
    queries, keys = (normalized(x.to(_wide(x)), settings.normalize) for x in (q, k))
    queries = queries * settings.scale
    if inputs.head_scale is not None:
        queries = queries * inputs.head_scale[:, None, None]
    if inputs.kept_q is not None and inputs.kept_k is not None:
        queries, keys = queries * inputs.kept_q, keys * inputs.kept_k
    return queries.to(dtype), keys.to(dtype), v.to(dtype)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _are_finite(k: Tensor) -> Tensor:
    return k.isfinite().all(-1, keepdim=True)


def _positions(x: Tensor) -> Tensor:
    return torch.arange(x.shape[2], device=x.device).unsqueeze(-1)


def _first_not_finite(inputs: FlexInputs) -> Tensor:
    """Return the first token whose key, or value in a channel, is not finite, (B, Hkv, 1, Dv)."""
    wrong = ~(inputs.v.isfinite() & _are_finite(inputs.k))
    if inputs.key_mask is not None:
        wrong = wrong & inputs.key_mask.unsqueeze(-1)
    tokens = max(inputs.q.shape[2], inputs.k.shape[2])
    return torch.where(wrong, _positions(inputs.k), tokens).amin(2, keepdim=True)


def _score(inputs: FlexInputs, settings: Settings) -> Callable[..., Tensor]:
    """Return the function that FlexAttention applies to the products of a query and a key."""
    key_mask, high, low = inputs.key_mask, inputs.high, inputs.low
    groups = inputs.q.shape[1] // inputs.k.shape[1]
    smallest = torch.finfo(torch.float32).tiny

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        s = torch.log(similarity(s, settings.order).clamp(min=smallest))
        if high is not None and low is not None:
            of = h // groups
            s = s + torch.clamp((high[b, of, i] - high[b, of, j]) + (low[b, of, i] - low[b, of, j]), max=0)
        if key_mask is not None:
            s = torch.where(key_mask[b, h // groups, j], s, -torch.inf)
        return s

    return score
