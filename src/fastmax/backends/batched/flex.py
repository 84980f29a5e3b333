"""The dense form by FlexAttention, PyTorch's fused kernel: softmax(log f(s) + c_i - c_j) is Fastmax with decays c.

Three functions are compiled: `prepare` normalizes, `attend` is FlexAttention with its own gradient, and `gradients` is that
of `prepare`. Each reads its tensors once and writes them once. Compiled as one, PyTorch 2.13 would store the normalized
tokens in fp32 for the gradient.

`attend_with_graph` keeps the graph of FlexAttention's gradient. `backward`, which an op needs, computes the forward pass
again, because PyTorch 2.13 does not compile that gradient alone. A call with decays has its gradients from the batched
products: FlexAttention would add up those of the decays in memory, pair by pair.

They are compiled at the first call on a device. Where that fails, the batched tiles of pairs.py take over, and a message
says so once. Nothing is imported before.
"""

import logging
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fastmax._torch_private import compile_variants, keep_channels_static
from fastmax.call import Call, InputGrads, OutputGrads, autocast_dtype
from fastmax.core import normalized, normalized_vjp, similarity
from fastmax.decay import bounded, wide

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


class Raw(NamedTuple):
    """The raw inputs of a call, and the factors of tokens that dropout leaves."""

    q: Tensor  # (B, Hq, N, D)
    k: Tensor  # (B, Hkv, N, D)
    v: Tensor
    head_scale: Tensor | None = None  # (Hq,)
    key_mask: Tensor | None = None  # (B, Hkv or 1, N)
    kept_q: Tensor | None = None  # (B, Hq, N, 1)
    kept_k: Tensor | None = None


class Operands(NamedTuple):
    """Normalized queries times their scale, normalized keys, and values, all of one dtype."""

    q: Tensor
    k: Tensor
    v: Tensor


class Forgetting(NamedTuple):
    """The inputs of scores besides q and k: the mask of keys, and sums of log_decay in two parts."""

    key_mask: Tensor | None = None  # (B, Hkv or 1, N)
    high: Tensor | None = None  # (B, Hkv, N)
    low: Tensor | None = None


class Settings(NamedTuple):
    """The plain values of a call that are compiled in."""

    order: int
    is_causal: bool
    normalize: str
    scale: float
    returns_g: bool = True


Grads = tuple[Tensor, Tensor, Tensor, Tensor | None]
"""The gradients of q, k, v and head_scale."""


class Functions(NamedTuple):
    """The three functions, compiled or not."""

    prepare: Callable[[Raw, Settings], Operands]
    attend: Callable[[Operands, Forgetting, Settings, Any], tuple[Tensor, Tensor | None]]
    gradients: Callable[[Raw, Operands, Settings], Grads]


BLOCK = 128
"""Queries and keys in a block of the causal mask, as FlexAttention has them by itself."""

MAX_VARIANTS = 64
"""The most variants of a function that are compiled: one per combination of settings, dtypes, channels and optional inputs.
Past PyTorch's own limit, 8, FlexAttention would run uncompiled and store all weights."""


def functions_for(call: Call) -> Functions | None:
    """Return the compiled functions for a call that they can compute here, or None."""
    if call.q.device.type not in DEVICES or refusal(call) is not None:
        return None
    return compiled(call.q.device.type)


@cache
def compiled(device: str) -> Functions | None:
    """Return the functions compiled for a kind of device, or None where that does not work."""
    reason = "triton is not installed" if find_spec("triton") is None else None
    if reason is None:
        try:
            found = Functions(*(compile_variants(one, MAX_VARIANTS) for one in PLAIN))
            x = (
                torch.eye(128, 16, device=device).expand(1, 1, 128, 16).requires_grad_()
            )  # no random number of the caller's
            mask = _block_mask(128, 128, x.device)
            o, _ = _run(found, Raw(x, x, x), Forgetting(), Settings(2, True, "standardize", 1.0), mask)
            torch.autograd.grad(o.sum(), x)
        except Exception as error:  # of a compiler, a driver, or a build of torch without them
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        else:
            return found
    logging.getLogger("fastmax").warning(
        "fastmax: FlexAttention cannot be compiled here, so short sequences take slower products: %s", reason
    )
    return None


def attend_with_graph(call: Call, functions: Functions) -> Tensor:
    """Return o, whose gradients autograd has from PyTorch. As in the op, autocast lowers the output alone."""
    device = call.q.device.type
    lowers = autocast_dtype(device, torch.float32) is not None
    with torch.autocast(device, enabled=False) if lowers else nullcontext():
        o, _ = _run(functions, _raw(call), _forgetting(call), _settings(call, returns_g=False), _mask_of(call))
    return o.to(call.options.out_dtype)


def forward(call: Call, functions: Functions) -> tuple[Tensor, Tensor, Tensor]:
    """Return o, g and no state."""
    o, g, state = call.new_outputs()
    settings = _settings(call, returns_g=True)
    found, found_g = _run(functions, _raw(call), _forgetting(call), settings, _mask_of(call))
    assert found_g is not None
    return _as(o, found), _as(g, found_g), state


def backward(call: Call, grads: OutputGrads, functions: Functions) -> InputGrads:
    """Return the gradients of the raw inputs of a call without decays."""
    assert call.log_decay is None
    out, raw = InputGrads.empty(call), _raw(call)
    given = {name: getattr(raw, name) for name in ("q", "k", "v", "head_scale")}
    leaves = {name: x.detach().requires_grad_() for name, x in given.items() if x is not None}
    settings = _settings(call, returns_g=grads.g is not None)
    with torch.enable_grad():
        outputs = _run(functions, raw._replace(**leaves), _forgetting(call), settings, _mask_of(call))
    pairs = [(x, d.to(x.dtype)) for x, d in zip(outputs, grads[:2], strict=True) if x is not None and d is not None]
    found: Any = [torch.zeros_like(x) for x in leaves.values()]
    if pairs:
        found = torch.autograd.grad([x for x, _ in pairs], [*leaves.values()], [d for _, d in pairs])
    return out._replace(**{name: _as(getattr(out, name), x) for name, x in zip(leaves, found, strict=True)})


def _run(
    functions: Functions, raw: Raw, forgetting: Forgetting, settings: Settings, mask: Any
) -> tuple[Tensor, Tensor | None]:
    prepared = Operands(*_Prepare.apply(functions, settings, *raw))  # type: ignore[no-untyped-call]
    return functions.attend(Operands(*map(keep_channels_static, prepared)), forgetting, settings, mask)


class _Prepare(torch.autograd.Function):
    """The autograd of `prepare`. It saves the raw inputs alone."""

    @staticmethod
    def forward(ctx: Any, functions: Functions, settings: Settings, *tensors: Any) -> Any:
        ctx.save_for_backward(*tensors)
        ctx.functions, ctx.settings = functions, settings
        return tuple(functions.prepare(_with_static_channels(tensors), settings))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        d = Operands(*map(keep_channels_static, grads))
        found = ctx.functions.gradients(_with_static_channels(ctx.saved_tensors), d, ctx.settings)
        return None, None, *found, *[None] * (len(Raw._fields) - len(found))


def _with_static_channels(tensors: Any) -> Raw:
    raw = Raw(*tensors)
    return raw._replace(q=keep_channels_static(raw.q), k=keep_channels_static(raw.k), v=keep_channels_static(raw.v))


def _as(expected: Tensor, found: Tensor) -> Tensor:
    """Return what was found in the dtype and memory layout that are expected."""
    is_same = (found.dtype, found.stride()) == (expected.dtype, expected.stride())
    return found if is_same else expected.copy_(found)


def _settings(call: Call, *, returns_g: bool) -> Settings:
    return Settings(call.options.order, call.options.is_causal, call.options.normalize, call.scale, returns_g)


def _raw(call: Call) -> Raw:
    masks = call.dropout_masks()
    kept_q, kept_k = (None, None) if masks is None else (x.token_factors(0, x.add.shape[-1], call.dtype) for x in masks)
    return Raw(call.q, call.k, call.v, call.head_scale, _key_mask(call), kept_q, kept_k)


def _forgetting(call: Call) -> Forgetting:
    if call.log_decay is None:
        return Forgetting(_key_mask(call))
    c = bounded(call.log_decay).to(wide(call.q.device)).cumsum(-1)
    high = c.to(call.dtype)
    return Forgetting(_key_mask(call), high, (c - high).to(call.dtype))


def _key_mask(call: Call) -> Tensor | None:
    return None if call.key_mask is None else call.key_mask.expand(-1, call.k.shape[1], -1)


def _mask_of(call: Call) -> Any:
    return _block_mask(call.q.shape[2], call.k.shape[2], call.q.device) if call.options.is_causal else None


@lru_cache(maxsize=64)
def _block_mask(queries: int, keys: int, device: torch.device) -> Any:
    """Return the causal mask, with the blocks that need no look at their pairs. `create_block_mask` would store all pairs."""
    from torch.nn.attention.flex_attention import BlockMask

    row = torch.arange(-(-queries // BLOCK), device=device).unsqueeze(-1)
    column = torch.arange(-(-keys // BLOCK), device=device)
    is_whole = (column < row) & ((row + 1) * BLOCK <= queries) & ((column + 1) * BLOCK <= keys)
    lists = (_listed(blocks[None, None]) for blocks in ((column <= row) & ~is_whole, is_whole))
    return BlockMask.from_kv_blocks(*next(lists), *next(lists), BLOCK, _sees, (queries, keys))


def _sees(_b: Tensor, _h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return i >= j


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many blocks each row has, and the columns, those of its blocks first."""
    return blocks.sum(-1, dtype=torch.int32), blocks.to(torch.int8).argsort(dim=-1, descending=True, stable=True).int()


def prepare(raw: Raw, settings: Settings) -> Operands:
    """Normalize queries and keys.

    FlexAttention multiplies whole tiles, and zero times infinity is NaN: causality would not keep such a value from the
    queries before it. So values that are not finite become zeros, and their keys NaN, as a key becomes that is not finite
    itself. A score of NaN reaches the output of every query that sees the key, in all channels, and of no other.
    """
    q, k, v = raw[:3]
    dtype = q.dtype if q.dtype == k.dtype == v.dtype else torch.float32
    keep = None if raw.key_mask is None else raw.key_mask.unsqueeze(-1)
    if keep is not None:
        k, v = torch.where(keep, k, 0), torch.where(keep, v, 0)
    queries, keys = (normalized(x.to(_wide(x)), settings.normalize) for x in (q, k))
    if settings.is_causal:
        is_finite = v.isfinite()
        keys = torch.where(is_finite.all(-1, keepdim=True), keys, torch.nan)
        v = torch.where(is_finite, v, 0)
    queries = queries * _query_factor(raw, settings)
    if raw.kept_k is not None:
        keys = keys * raw.kept_k
    return Operands(queries.to(dtype), keys.to(dtype), v.to(dtype))


def gradients(raw: Raw, grads: Operands, settings: Settings) -> Grads:
    """Return the gradients of raw inputs from those of prepared ones."""
    q, k, v = raw[:3]
    dq, dk = (d.to(_wide(x)) for x, d in zip((q, k), grads, strict=False))
    dv, d_head_scale = grads.v, None
    if raw.head_scale is not None:
        factor = settings.scale if raw.kept_q is None else settings.scale * raw.kept_q
        d_head_scale = (dq * normalized(q.to(_wide(q)), settings.normalize) * factor).sum((0, 2, 3))
    if raw.kept_k is not None:
        dk = dk * raw.kept_k
    dq = normalized_vjp(q.to(_wide(q)), dq * _query_factor(raw, settings), settings.normalize)
    if settings.is_causal:
        dv = torch.where(v.isfinite(), dv, 0)
    if raw.key_mask is None:
        dk = normalized_vjp(k.to(_wide(k)), dk, settings.normalize)
    else:
        keep = raw.key_mask.unsqueeze(-1)
        dk = normalized_vjp(torch.where(keep, k, 0).to(_wide(k)), dk, settings.normalize)
        dk, dv = torch.where(keep, dk, 0), torch.where(keep, dv, 0)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), d_head_scale


def _query_factor(raw: Raw, settings: Settings) -> Tensor | float:
    factor: Tensor | float = settings.scale
    if raw.head_scale is not None:
        factor = factor * raw.head_scale[:, None, None]
    return factor if raw.kept_q is None else factor * raw.kept_q


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def attend(prepared: Operands, forgetting: Forgetting, settings: Settings, mask: Any) -> tuple[Tensor, Tensor | None]:
    """Return o, and g if the settings request it. Where g is 0, FlexAttention returns zeros."""
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    o, more = flex_attention(
        *prepared,
        score_mod=_score(forgetting, settings, prepared.q.shape[1] // prepared.k.shape[1]),
        block_mask=mask,
        scale=1.0,
        enable_gqa=prepared.q.shape[1] > prepared.k.shape[1],
        return_aux=AuxRequest(lse=settings.returns_g),
    )
    return o, None if more.lse is None else more.lse.exp()


def _score(forgetting: Forgetting, settings: Settings, groups: int) -> Callable[..., Tensor]:
    """Return the function that FlexAttention applies to the products of a query and a key."""
    key_mask, high, low = forgetting
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


PLAIN = Functions(prepare, attend, gradients)
"""Not compiled."""
