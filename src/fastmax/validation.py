"""The checks of the public functions: each error says what was expected and what came."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from fastmax import backends
from fastmax._torch_private import assert_on_device
from fastmax.call import NORMALIZATIONS, Inputs, Lead, Options, accumulation_dtype
from fastmax.core import MAX_ORDER
from fastmax.dropout import MODES
from fastmax.features import feature_count

BACKENDS = ("auto", *backends.NAMES)
"""The values of `backend`; `fastmax.backends` defines "auto"."""

_DTYPES = frozenset((torch.float64, torch.float32, torch.bfloat16, torch.float16))


def attention(inputs: Inputs, options: Options, sequences: int | None = None) -> Lead:
    """Check a whole call. `scale` is the caller's; `sequences` is the number of packed ones, if any.

    Returns the leading dimensions, to which those of the inputs broadcast.
    """
    query, key, value, attn_mask, scale, log_decay, initial_state = inputs
    _options(options)
    _tensors(query, key, value, 3 if options.enable_gqa else 2)
    lead = _leading(query, key, value, options.enable_gqa, sequences)
    if scale is not None:
        _scale(scale, query.device, lead.heads[0] if lead.heads else 1)
    if attn_mask is not None:
        _mask(attn_mask, query.device, (*lead.batch, *lead.heads), key.shape[-2])
        if lead.key_heads != lead.heads and attn_mask.dim() > 2 and attn_mask.shape[-3] != 1:
            _no_state_for_mask_per_head(initial_state, options.return_state)
    if log_decay is not None:
        _log_decay(log_decay, query, key, initial_state, lead, options)
    if initial_state is not None:
        _state(initial_state, (*lead.states, *lead.key_heads), query, key, value, options.order)
    return lead


def _options(options: Options) -> None:
    """Check the plain values, and name the wrong one."""
    values: tuple[Any, ...] = options
    order, is_causal, normalize, _, enable_gqa, return_state, dropout_p, mode, backend, _ = values
    if type(is_causal) is not bool or type(enable_gqa) is not bool or type(return_state) is not bool:
        for name, value in (("is_causal", is_causal), ("enable_gqa", enable_gqa), ("return_state", return_state)):
            flag(name, value)
    if type(order) is not int or not 1 <= order <= MAX_ORDER:
        _refuse_order(order)
    if normalize not in NORMALIZATIONS:
        raise _wrong_normalize(normalize)
    if type(dropout_p) is not float or not 0 <= dropout_p < 1:
        _probability(dropout_p)
    if mode not in MODES:
        dropout_mode(mode)
    if backend not in BACKENDS:
        _refuse_backend(backend)


def packed(query: Tensor, key: Tensor, value: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor) -> None:
    """Check what is particular to packed sequences: (total, heads, D) and where each sequence ends."""
    _are_tensors(query=query, key=key, value=value, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.dim() != 3:
            raise ValueError(f"{name} must be packed as (total, heads, D), got shape {tuple(x.shape)}")
    for name, cu in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        if cu.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"{name} must be int32 or int64, got {cu.dtype}")
        if cu.dim() != 1 or cu.shape[0] < 1:
            raise ValueError(f"{name} must be of shape (sequences + 1,), got {tuple(cu.shape)}")
    if cu_seqlens_q.shape != cu_seqlens_k.shape:
        raise ValueError(
            "cu_seqlens_q and cu_seqlens_k must have the same number of sequences, "
            f"got {cu_seqlens_q.shape[0] - 1} and {cu_seqlens_k.shape[0] - 1}"
        )


def cu_seqlens(name: str, cu: Tensor | Sequence[int], total: int) -> None:
    """Check the values of a cu_seqlens inside the op. On a GPU the device checks them without a synchronization."""
    wanted = f"{name} must rise from 0 to the total of {total} tokens without falling"
    if isinstance(cu, Tensor) and cu.is_cuda:
        first, last = cu.select(0, 0), cu.select(0, -1)
        assert_on_device((first == 0) & (last == total) & (cu.diff() >= 0).all(), wanted)
        return
    ends = cu.tolist() if isinstance(cu, Tensor) else list(cu)
    if ends[0] != 0 or ends[-1] != total or any(a > b for a, b in pairwise(ends)):
        shown = str(ends) if len(ends) <= 12 else f"[{', '.join(map(str, ends[:12]))}, ...]"
        raise ValueError(f"{wanted}, got {shown}")


def same_sequences(cu_q: Tensor, cu_k: Tensor) -> None:
    """Check that packed queries and keys have the same sequences, which log_decay needs, as `cu_seqlens` checks."""
    wanted = "log_decay is for self attention: cu_seqlens_q and cu_seqlens_k must be equal"
    if cu_q is cu_k:
        return
    if cu_q.is_cuda:
        assert_on_device((cu_q == cu_k).all(), wanted)
    elif not torch.equal(cu_q, cu_k):
        raise ValueError(f"{wanted}, got different ones")


def head_scale(scale: Tensor) -> None:
    """Check the values of a tensor of scales inside the op."""
    if not bool(torch.isfinite(scale).all()):
        raise ValueError(f"scale must be finite, got {scale.tolist()}")


def _state(initial_state: Tensor, lead: tuple[int, ...], query: Tensor, key: Tensor, value: Tensor, order: int) -> None:
    """Check an initial state: (*lead, F, Dv + 1) in the dtype of sums."""
    if not isinstance(initial_state, Tensor):
        raise TypeError(f"initial_state must be a torch.Tensor or None, got {type(initial_state).__name__}")
    features = feature_count(query.shape[-1], order)
    expected = (*lead, features, value.shape[-1] + 1)
    if tuple(initial_state.shape) != expected:
        raise ValueError(
            f"initial_state must be of shape (*batch, heads, features, Dv + 1) = {expected} "
            f"(order {order} has {features} features at D = {query.shape[-1]}), got {tuple(initial_state.shape)}"
        )
    dtype = accumulation_dtype(query.dtype, key.dtype, value.dtype)
    if initial_state.dtype != dtype:
        raise ValueError(f"initial_state must be {dtype}, the dtype of the sums, got {initial_state.dtype}")
    if initial_state.device != query.device:
        raise ValueError(f"initial_state must be on {query.device} as query is, got {initial_state.device}")


def _log_decay(
    log_decay: Tensor, query: Tensor, key: Tensor, state: Tensor | None, lead: Lead, options: Options
) -> None:
    """Check the shape and device of log_decay. The op checks its values."""
    _are_tensors(log_decay=log_decay)
    if not log_decay.is_floating_point():
        raise ValueError(f"log_decay must be a floating-point tensor, got {log_decay.dtype}")
    if log_decay.device != query.device:
        raise ValueError(f"log_decay must be on {query.device} as query is, got {log_decay.device}")
    if query.shape[-2] not in (0, key.shape[-2]):
        raise ValueError(
            "log_decay is for self attention, where queries and keys are the same tokens (or there are no queries at all): "
            f"got {query.shape[-2]} queries and {key.shape[-2]} keys"
        )
    if not options.is_causal and (options.return_state or state is not None):
        raise ValueError("with log_decay, initial_state and return_state need is_causal=True")
    expected = (*lead.batch, *lead.key_heads, key.shape[-2])
    if log_decay.dim() > len(expected) or _broadcast(tuple(log_decay.shape), expected) != expected:
        raise ValueError(
            f"log_decay must broadcast to (*batch, key heads, N) = {expected}, got shape {tuple(log_decay.shape)}"
        )


def _no_state_for_mask_per_head(initial_state: Tensor | None, return_state: bool) -> None:
    if initial_state is not None or return_state:
        raise ValueError(
            "query heads that share a key head share its state: with initial_state or return_state, attn_mask must have "
            "a head dimension of 1, got one mask per query head"
        )


def _refuse_backend(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"backend must be a string, got {type(name).__name__}")
    raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {name!r}")


def _wrong_normalize(normalize: object) -> Exception:
    """Return the error for `normalize` in the words of the caller: True, False and "rms", not the canonical names."""
    kind = ValueError if isinstance(normalize, str) else TypeError
    return kind(f'normalize must be True, False or "rms", got {normalize!r}')


def dropout_mode(mode: str) -> None:
    if not isinstance(mode, str):
        raise TypeError(f"dropout_mode must be a string, got {type(mode).__name__}")
    if mode not in MODES:
        raise ValueError(f"dropout_mode must be one of {', '.join(MODES)}, got {mode!r}")


def flag(name: str, value: bool) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")


def _are_tensors(**named: Tensor) -> None:
    for name, x in named.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}")


def _tensors(query: Tensor, key: Tensor, value: Tensor, least_dims: int) -> None:
    _are_tensors(query=query, key=key, value=value)
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.dtype not in _DTYPES:
            raise ValueError(f"{name} must be float64, float32, bfloat16 or float16, got {x.dtype}")
        if x.is_nested or x.layout is not torch.strided:
            kind = "nested" if x.is_nested else str(x.layout)
            raise ValueError(
                f"{name} must be a dense tensor, got a {kind} one: pad it, or use fastmax_varlen_attention"
            )
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


def _leading(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool, sequences: int | None) -> Lead:
    kept = 3 if enable_gqa else 2
    leads = query.shape[:-kept], key.shape[:-kept], value.shape[:-kept]
    lead = tuple(leads[0]) if leads[0] == leads[1] == leads[2] else _broadcast(*leads)
    if lead is None or enable_gqa:
        _heads_fit(query, key, value, lead, enable_gqa)
    assert lead is not None
    batch = lead if enable_gqa else lead[:-1]
    heads = tuple(query.shape[-3:-2]) if enable_gqa else lead[-1:]
    key_heads = tuple(key.shape[-3:-2]) if enable_gqa else heads
    return Lead(batch, heads, key_heads, batch if sequences is None else (sequences,))


def _heads_fit(query: Tensor, key: Tensor, value: Tensor, lead: tuple[int, ...] | None, enable_gqa: bool) -> None:
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    if lead is None:
        hint = "" if enable_gqa else "; enable_gqa=True lets several query heads share a key head"
        raise ValueError(f"leading dimensions must be equal or broadcast, got {shapes}{hint}")
    if key.shape[-3] != value.shape[-3]:
        raise ValueError(f"key and value must have the same number of heads, got {shapes}")
    if key.shape[-3] == 0 or query.shape[-3] % key.shape[-3]:
        raise ValueError(f"the number of query heads must be a multiple of the number of key heads, got {shapes}")


def _refuse_order(order: object) -> None:
    if not isinstance(order, int) or isinstance(order, bool):
        raise TypeError(f"order must be an int, got {order!r}")
    raise ValueError(f"order must be from 1 to {MAX_ORDER}, got {order}")


def _probability(dropout_p: float) -> None:
    if not isinstance(dropout_p, int | float) or isinstance(dropout_p, bool):
        raise TypeError(f"dropout_p must be a number, got {dropout_p!r}")
    if not 0 <= dropout_p < 1:
        raise ValueError(f"dropout_p must be in [0, 1), got {dropout_p}")


def _scale(scale: float | Tensor, device: torch.device, heads: int) -> None:
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
    elif not -float("inf") < scale < float("inf"):  # isfinite takes no symbol of a compiler
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
    """Return the shape that these broadcast to, or None. A compiler cannot trace torch.broadcast_shapes, which raises."""
    result = [1] * max(len(shape) for shape in shapes)
    for shape in shapes:
        offset = len(result) - len(shape)
        for i, size in enumerate(shape):
            if result[offset + i] == 1:
                result[offset + i] = size
            elif size not in (1, result[offset + i]):
                return None
    return tuple(result)
