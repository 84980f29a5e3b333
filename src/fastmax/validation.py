"""What the public functions accept: each refusal says what was expected and what came."""

from collections.abc import Sequence
from itertools import pairwise
from math import isfinite

import torch
from torch import Tensor

from fastmax.core import MAX_ORDER
from fastmax.dropout import MODES
from fastmax.features import feature_count

_DTYPES = frozenset((torch.float64, torch.float32, torch.bfloat16, torch.float16))


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    order: int,
    scale: float | Tensor | None,
    normalize: bool,
    enable_gqa: bool,
) -> tuple[int, ...]:
    """Everything about a call of `fastmax_attention` but the states and the backend.

    Returns the leading dimensions of the output, (*batch, query heads), to which those of the inputs broadcast.
    """
    _tensors(query, key, value, least_dims=3 if enable_gqa else 2)
    flag("is_causal", is_causal)
    flag("normalize", normalize)
    flag("enable_gqa", enable_gqa)
    _order(order)
    _probability(dropout_p)
    lead = _leading(query, key, value, enable_gqa)
    _scale(scale, query.device, lead[-1] if lead else 1)
    if attn_mask is not None:
        _mask(attn_mask, query.device, lead, key.shape[-2])
    return lead


def packed(query: Tensor, key: Tensor, value: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor) -> None:
    """What is particular to packed sequences: (total, heads, D) and where each sequence ends."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        _tensor(name, x)
        if x.dim() != 3:
            raise ValueError(f"{name} must be packed as (total, heads, D), got shape {tuple(x.shape)}")
    for name, cu in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        _tensor(name, cu)
        if cu.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"{name} must be int32 or int64, got {cu.dtype}")
        if cu.dim() != 1 or cu.shape[0] < 1:
            raise ValueError(f"{name} must be of shape (sequences + 1,), got {tuple(cu.shape)}")
    if cu_seqlens_q.shape != cu_seqlens_k.shape:
        raise ValueError(
            "cu_seqlens_q and cu_seqlens_k must speak of the same number of sequences, "
            f"got {cu_seqlens_q.shape[0] - 1} and {cu_seqlens_k.shape[0] - 1}"
        )


def cu_seqlens(name: str, cu: Tensor, total: int) -> None:
    """The values of a cu_seqlens: reads them, so it runs where the data is at hand, inside the op."""
    ends = cu.tolist()
    if ends[0] != 0 or ends[-1] != total or any(a > b for a, b in pairwise(ends)):
        shown = str(ends) if len(ends) <= 12 else f"[{', '.join(map(str, ends[:12]))}, ...]"
        raise ValueError(f"{name} must rise from 0 to the total of {total} tokens without falling, got {shown}")


def head_scale(scale: Tensor) -> None:
    """The values of a tensor of scales; likewise inside the op."""
    if not bool(torch.isfinite(scale).all()):
        raise ValueError(f"scale must be finite, got {scale.tolist()}")


def state(
    initial_state: Tensor | None, lead: tuple[int, ...], query: Tensor, value: Tensor, order: int, dtype: torch.dtype
) -> None:
    """An initial state: (*lead, F, Dv + 1) in the dtype that sums are taken in."""
    if initial_state is None:
        return
    if not isinstance(initial_state, Tensor):
        raise TypeError(f"initial_state must be a torch.Tensor or None, got {type(initial_state).__name__}")
    features = feature_count(query.shape[-1], order)
    expected = (*lead, features, value.shape[-1] + 1)
    if tuple(initial_state.shape) != expected:
        raise ValueError(
            f"initial_state must be of shape (*batch, heads, features, Dv + 1) = {expected} "
            f"(order {order} has {features} features at D = {query.shape[-1]}), got {tuple(initial_state.shape)}"
        )
    if initial_state.dtype != dtype:
        raise ValueError(f"initial_state must be {dtype}, the dtype of the sums, got {initial_state.dtype}")
    if initial_state.device != query.device:
        raise ValueError(f"initial_state must be on {query.device} as query is, got {initial_state.device}")


def no_state_for_mask_per_head(initial_state: Tensor | None, return_state: bool) -> None:
    if initial_state is not None or return_state:
        raise ValueError(
            "query heads that share a key head share its state: with initial_state or return_state, attn_mask must have "
            "a head dimension of 1, got one mask per query head"
        )


def backend(name: str, known: Sequence[str]) -> None:
    if not isinstance(name, str):
        raise TypeError(f"backend must be a string, got {type(name).__name__}")
    if name != "auto" and name not in known:
        raise ValueError(f"backend must be one of {', '.join(['auto', *known])}, got {name!r}")


def dropout_mode(mode: str) -> None:
    if not isinstance(mode, str):
        raise TypeError(f"dropout_mode must be a string, got {type(mode).__name__}")
    if mode not in MODES:
        raise ValueError(f"dropout_mode must be one of {', '.join(MODES)}, got {mode!r}")


def flag(name: str, value: bool) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")


def _tensor(name: str, x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}")


def _tensors(query: Tensor, key: Tensor, value: Tensor, least_dims: int) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        _tensor(name, x)
        if x.dtype not in _DTYPES:
            raise ValueError(f"{name} must be float64, float32, bfloat16 or float16, got {x.dtype}")
        if x.dim() < least_dims:
            layout = "(..., heads, N, D)" if least_dims == 3 else "(..., N, D)"
            raise ValueError(f"{name} must be {layout}, got shape {tuple(x.shape)}")
        if x.shape[-1] < 1:
            raise ValueError(f"{name} must have at least one channel, got shape {tuple(x.shape)}")
    if not query.device == key.device == value.device:
        raise ValueError(
            f"query, key and value must be on one device, got {query.device}, {key.device} and {value.device}"
        )
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"query and key must have the same head dimension, got {query.shape[-1]} and {key.shape[-1]}")
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(f"key and value must have the same length, got {key.shape[-2]} and {value.shape[-2]}")


def _leading(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> tuple[int, ...]:
    kept = 3 if enable_gqa else 2
    leads = query.shape[:-kept], key.shape[:-kept], value.shape[:-kept]
    lead = tuple(leads[0]) if leads[0] == leads[1] == leads[2] else _broadcast(*leads)
    if lead is not None and not enable_gqa:
        return lead
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    if lead is None:
        hint = "" if enable_gqa else "; enable_gqa=True lets several query heads share a key head"
        raise ValueError(f"leading dimensions must be equal or broadcast, got {shapes}{hint}")
    if key.shape[-3] != value.shape[-3]:
        raise ValueError(f"key and value must have the same number of heads, got {shapes}")
    if key.shape[-3] == 0 or query.shape[-3] % key.shape[-3]:
        raise ValueError(f"the number of query heads must be a multiple of the number of key heads, got {shapes}")
    return (*lead, query.shape[-3])


def _order(order: int) -> None:
    if not isinstance(order, int) or isinstance(order, bool):
        raise TypeError(f"order must be an int, got {order!r}")
    if not 1 <= order <= MAX_ORDER:
        raise ValueError(f"order must be from 1 to {MAX_ORDER}, got {order}")


def _probability(dropout_p: float) -> None:
    if not isinstance(dropout_p, int | float) or isinstance(dropout_p, bool):
        raise TypeError(f"dropout_p must be a number, got {dropout_p!r}")
    if not 0 <= dropout_p < 1:
        raise ValueError(f"dropout_p must be in [0, 1), got {dropout_p}")


def _scale(scale: float | Tensor | None, device: torch.device, heads: int) -> None:
    if scale is None:
        return
    if isinstance(scale, Tensor):
        shape = tuple(scale.shape)
        if shape not in ((), (heads,)):
            raise ValueError(f"scale must have one value or one per query head, shape ({heads},), got shape {shape}")
        if not scale.is_floating_point():
            raise ValueError(f"scale must be a floating-point tensor, got {scale.dtype}")
        if scale.device != device:
            raise ValueError(f"scale must be on {device} as query is, got {scale.device}")
    elif isinstance(scale, bool) or not isinstance(scale, int | float):
        raise TypeError(f"scale must be a number, a tensor or None, got {scale!r}")
    # A compiler has no value to look at, only a symbol, on which it would have to branch.
    elif not torch.compiler.is_compiling() and not isfinite(scale):
        raise ValueError(f"scale must be finite, got {scale}")


def _mask(attn_mask: Tensor, device: torch.device, lead: tuple[int, ...], keys: int) -> None:
    if not isinstance(attn_mask, Tensor):
        raise TypeError(f"attn_mask must be a torch.Tensor or None, got {type(attn_mask).__name__}")
    if attn_mask.dtype != torch.bool:
        raise ValueError(f"attn_mask must be boolean, True where a key counts, got {attn_mask.dtype}")
    if attn_mask.device != device:
        raise ValueError(f"attn_mask must be on {device} as query is, got {attn_mask.device}")
    shape = tuple(attn_mask.shape)
    wanted = f"attn_mask must broadcast to {(*lead, 1, keys)}, (*batch, query heads, 1, Nk)"
    if attn_mask.dim() > 1 and shape[-2] != 1 and attn_mask.stride(-2) != 0:
        raise ValueError(
            f"{wanted}; it may not vary with the query, for then attention is not one sum over keys: got shape {shape}. "
            "Use is_causal=True for a causal mask, and mask[:, None, None, :] for a padding mask of (B, Nk)"
        )
    if attn_mask.dim() == 0 or _broadcast((*shape[:-2], shape[-1]), (*lead, keys)) != (*lead, keys):
        raise ValueError(f"{wanted}, got shape {shape}")


def _broadcast(*shapes: Sequence[int]) -> tuple[int, ...] | None:
    """The shape that they broadcast to, or None. (torch.broadcast_shapes raises, which a compiler cannot trace.)"""
    result = [1] * max(len(shape) for shape in shapes)
    for shape in shapes:
        offset = len(result) - len(shape)
        for i, size in enumerate(shape):
            if result[offset + i] == 1:
                result[offset + i] = size
            elif size not in (1, result[offset + i]):
                return None
    return tuple(result)
