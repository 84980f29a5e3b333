"""fastmax_attention and fastmax_varlen_attention: check the arguments, bring them to the canonical layout, call the op."""

from math import prod
from typing import Any

import torch
from torch import Tensor

from fastmax import _eager_path, dropout, ops, validation
from fastmax.backends import BACKENDS
from fastmax.call import Problem, accumulation_dtype
from fastmax.core import default_scale


def fastmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    order: int = 2,
    scale: float | Tensor | None = None,
    normalize: bool = True,
    enable_gqa: bool = False,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    dropout_mode: str = "quadratic",
    backend: str = "auto",
) -> Any:
    """Exact Fastmax attention in O(N) time and O(N D) memory, in the place of F.scaled_dot_product_attention.

    Args:
        query: (..., Hq, Nq, D). Leading dimensions of the three inputs broadcast; tensors without them are fine too.
        key: (..., Hkv, Nk, D).
        value: (..., Hkv, Nk, Dv).
        attn_mask: boolean, True where a key counts, broadcastable to (..., Hq, 1, Nk): it may not vary with the query. It
            may be combined with `is_causal`. What a masked key holds does not matter, be it NaN. A query with no key left
            gives zeros.
        dropout_p: the rate at which factorized terms are dropped, in [0, 1), by `dropout_mode`. As in SDPA, it is applied
            whenever it is not 0: pass 0 in evaluation. Runs on the chunked backend.
        is_causal: query i sees the keys j <= i, aligned at the top left if Nq != Nk, and all of `initial_state`.
        order: the degree of the polynomial, 1 to 4.
        scale: multiplies s = q̂ . k̂; a number, or a tensor with one value per query head, which may be learned. Default: 1
            for even orders, 1 / D for odd ones, whose weights can be negative at larger scales.
        normalize: standardize each query and key. With False the inputs are taken as they are: apply
            `fastmax.standardize` yourself, for example to rotate positions in after it.
        enable_gqa: Hq may be a multiple of Hkv: consecutive query heads share a key head.
        initial_state: the sum over keys that came before, (..., Hkv, F, Dv + 1), from an earlier `return_state`.
        return_state: return (output, state), the state being `initial_state` plus the sum over these keys. Gradients flow
            through both.
        dropout_mode: "quadratic" drops features of degree 2 of each query and key, "standard" all but the constant one, "1d"
            whole queries and keys. Masks come from torch's generator and are never stored.
        backend: "auto" or the name of one, see `fastmax.backends`.

    Returns:
        (..., Hq, Nq, Dv) in the dtype of `value`, or of autocast where it is on; sums are taken in fp32 (fp64 for fp64).
    """
    again = _eager_path.signature(
        query, key, value, attn_mask, dropout_p, is_causal, order, scale, normalize, enable_gqa,
        initial_state, return_state, dropout_mode, backend,
    )  # fmt: skip
    prepared = None if again is None else _eager_path.known(again)
    if prepared is not None:
        return prepared(query, key, value)
    validation.flag("return_state", return_state)
    problem, lead, states = _problem(
        query, key, value, attn_mask, dropout_p, is_causal, order, scale, normalize, enable_gqa,
        initial_state, return_state, dropout_mode, backend, None, None,
    )  # fmt: skip
    if again is not None and problem.q is query and problem.k is key and problem.v is value:
        _eager_path.remember(again, problem)
    o, state = _attend(problem, lead, states, backend)
    return (o, state) if return_state else o


def fastmax_varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    order: int = 2,
    scale: float | Tensor | None = None,
    normalize: bool = True,
    enable_gqa: bool = False,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    dropout_mode: str = "quadratic",
    backend: str = "auto",
) -> Any:
    """Fastmax attention over sequences of different lengths, packed one after the other.

    Args:
        query: (total_q, Hq, D).
        key: (total_k, Hkv, D).
        value: (total_k, Hkv, Dv).
        cu_seqlens_q: (sequences + 1,), int32 or int64: sequence i has the queries cu_seqlens_q[i] up to cu_seqlens_q[i + 1].
        cu_seqlens_k: the same for the keys.
        attn_mask: boolean, broadcastable to (Hq, 1, total_k).
        initial_state: (sequences, Hkv, F, Dv + 1), as is the state returned.

    The other arguments are those of `fastmax_attention`; each sequence is attended to as if it were alone.

    Returns:
        (total_q, Hq, Dv), with the state if asked for.
    """
    validation.flag("return_state", return_state)
    validation.packed(query, key, value, cu_seqlens_q, cu_seqlens_k)
    problem, lead, states = _problem(
        query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1),
        attn_mask, dropout_p, is_causal, order, scale, normalize, enable_gqa,
        initial_state, return_state, dropout_mode, backend, cu_seqlens_q, cu_seqlens_k,
    )  # fmt: skip
    o, state = _attend(problem, lead, states, backend)
    o = o.transpose(0, 1)
    return (o, state) if return_state else o


def _problem(
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
    initial_state: Tensor | None,
    return_state: bool,
    dropout_mode: str,
    backend: str,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
) -> tuple[Problem, tuple[int, ...], tuple[int, ...]]:
    """The arguments of both public functions, on (..., heads, N, D), checked and in the canonical layout.

    Beside it the leading dimensions that the output and the state are to have.
    """
    lead = validation.attention(query, key, value, attn_mask, dropout_p, is_causal, order, scale, normalize, enable_gqa)
    validation.dropout_mode(dropout_mode)
    validation.backend(backend, list(BACKENDS))
    batch, heads = lead[:-1], lead[-1:]
    key_heads = (key.shape[-3],) if enable_gqa else heads
    states = batch if cu_seqlens_k is None else (cu_seqlens_k.shape[0] - 1,)
    dtype = accumulation_dtype(query.dtype, key.dtype, value.dtype)
    validation.state(initial_state, (*states, *key_heads), query, value, order, dtype)
    key_mask = None if attn_mask is None else _key_mask(attn_mask, batch, key.shape[-2])
    if key_mask is not None and key_heads != heads and key_mask.shape[1] != 1:
        # each query head has a mask of its own, so it needs a sum over keys of its own
        validation.no_state_for_mask_per_head(initial_state, return_state)
        key, value = (x.repeat_interleave(heads[0] // key_heads[0], -3) for x in (key, value))
        key_heads = heads
    problem = Problem(
        q=_canonical(query, batch, heads),
        k=_canonical(key, batch, key_heads),
        v=_canonical(value, batch, key_heads),
        order=order,
        is_causal=is_causal,
        normalize=normalize,
        scale=_number(scale, order, query.shape[-1]),
        return_state=return_state,
        out_dtype=_out_dtype(value, dtype),
        dropout_p=dropout_p,
        dropout_mode=dropout_mode,
        head_scale=scale.expand(heads[0] if heads else 1) if isinstance(scale, Tensor) else None,
        key_mask=key_mask,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        state_in=None if initial_state is None else _canonical(initial_state, states, key_heads),
        dropout_seed=dropout.new_seed(query.device) if dropout_p else None,
    )
    return problem, lead, (*states, *key_heads)


def _attend(problem: Problem, lead: tuple[int, ...], states: tuple[int, ...], backend: str) -> tuple[Tensor, Tensor]:
    """The output and the state, which is void unless asked for."""
    o, state = ops.attend(problem, backend)
    o = o if len(lead) == 2 else o.reshape(*lead, *o.shape[2:])
    return o, state.reshape(*states, *state.shape[2:]) if problem.return_state else state


def _canonical(x: Tensor, batch: tuple[int, ...], heads: tuple[int, ...]) -> Tensor:
    """(..., a, b) -> (B, H, a, b), a view wherever one exists."""
    if x.dim() == 4 and len(batch) == 1 and x.shape[:2] == (*batch, *heads):
        return x
    x = x.expand(*batch, *heads, *x.shape[-2:])
    return x if len(batch) == len(heads) == 1 else x.reshape(prod(batch), prod(heads), *x.shape[-2:])


def _key_mask(attn_mask: Tensor, batch: tuple[int, ...], keys: int) -> Tensor:
    """(..., 1, Nk) -> (B, heads or 1, Nk)."""
    mask = attn_mask[..., 0, :] if attn_mask.dim() > 1 else attn_mask
    heads = mask.shape[-2] if mask.dim() > 1 else 1
    lead = mask.shape[:-2]
    mask = mask.reshape(*[1] * (len(batch) - len(lead)), *lead, heads, mask.shape[-1])
    return mask.expand(*batch, heads, keys).reshape(prod(batch), heads, keys)


def _number(scale: float | Tensor | None, order: int, head_dim: int) -> float:
    """The part of the scale that is a number; a tensor comes on top of it."""
    if scale is None:
        return default_scale(order, head_dim)
    return 1.0 if isinstance(scale, Tensor) else float(scale)


def _out_dtype(value: Tensor, dtype: torch.dtype) -> torch.dtype:
    """As F.scaled_dot_product_attention: autocast lowers the output, but not that of fp64."""
    device = value.device.type
    known = device == "cpu" or torch.amp.is_autocast_available(device)
    if dtype == torch.float32 and known and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return value.dtype
