"""Attention of a few queries to a sum and recent tokens, and the definition of a decoding step in place."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from fastmax.backends import NAMES, load
from fastmax.core import normalized, similarity
from fastmax.decay import bounded, check_decays, wide
from fastmax.features import phi
from fastmax.state.recent import Recent


class Pairs(NamedTuple):
    """The monomials of degree 2: x_i x_j for i <= j, times their weights."""

    i: Tensor
    j: Tensor
    weights: Tensor  # 1, and sqrt(1/2) where i = j


def make_pairs(head_dim: int, dtype: torch.dtype, device: torch.device) -> Pairs:
    """Return the table for `monomials`. Every prepared step holds its own, so that no tensor outlives its device or mode."""
    i, j = torch.triu_indices(head_dim, head_dim, device=device)
    return Pairs(i, j, 1 + (0.5**0.5 - 1) * (i == j).to(dtype))


def attend(
    query: Tensor,
    total: Tensor | None,
    recent: Recent,
    *,
    order: int,
    first: int | None,
    pairs: Pairs | None = None,
) -> Tensor:
    """Return the attention of queries (B, Hq, N, D), normalized and scaled: (B, Hq, N, Dv), zeros where there is no key.

    Query n sees the recent keys up to `first` + n, or all of them if that is None. Differentiable, unless a sum of an order
    above 2 is read. Without `pairs` the table is made.
    """
    batch, heads, count, head_dim = query.shape
    key_heads = recent.keys.shape[1]
    q = query.reshape(batch, key_heads, heads // key_heads * count, head_dim)
    weights = similarity(q @ recent.keys.mT, order)
    kept = None
    if recent.decays is not None:
        kept = fading(recent.decays, first if count > 1 else None, count)
        kept = kept.repeat(1, 1, heads // key_heads, 1) if kept.shape[2] > 1 else kept
        weights = weights * kept[..., 1:]
    elif first is not None and count > 1:
        weights = weights.reshape(batch, heads, count, -1).tril(first).reshape(weights.shape)
    f = weights @ recent.values
    if total is not None:
        old = monomials(q, order, pairs) @ total
        f = f + (old if kept is None else old * kept[..., :1])
    g = f[..., -1:]
    o = torch.where(g == 0, 0, f[..., :-1] / torch.where(g == 0, 1, g))
    return o.reshape(batch, heads, count, o.shape[-1])


def fading(decays: Tensor, first: int | None, count: int) -> Tensor:
    """Return the factors that decays leave of the sum and of each recent key, (B, Hkv, N, 1 + n) for N queries.

    The decays, (B, Hkv, n), of the tokens after a key up to the query fade it. A key after the query has the factor 0. If
    `first` is None, all queries come last, and the result is of shape (B, Hkv, 1, 1 + n).
    """
    c = pad(decays.to(wide(decays.device)).cumsum(2), (1, 0)).unsqueeze(2)
    if first is None:
        return (c[..., -1:] - c).exp().to(decays.dtype)
    now = slice(first + 1, first + 1 + count)
    places = torch.arange(c.shape[3], device=decays.device)
    later = places > places[now, None]
    return (c[..., now].mT - c).masked_fill(later, -torch.inf).exp().to(decays.dtype)


def monomials(x: Tensor, order: int, pairs: Pairs | None = None) -> Tensor:
    """Return `fastmax.features.phi` of a few tokens, (..., N, D) -> (..., N, F). Traceable up to order 2."""
    if order > 2:
        return phi(x.mT.contiguous(), order).mT
    features = [torch.ones_like(x[..., :1]), x]
    if order == 2:
        i, j, weights = make_pairs(x.shape[-1], x.dtype, x.device) if pairs is None else pairs
        features.append(x[..., i] * x[..., j] * weights)
    return torch.cat(features, -1)


Step = Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, int, int], Tensor]


def prepare_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    total: Tensor | None,
    recent_k: Tensor,
    recent_u: Tensor,
    recent_decay: Tensor | None,
    total_decay: Tensor | None,
    log_decay: Tensor | None,
    *,
    order: int,
    scale: float,
    normalize: str,
) -> Step:
    """Return a decoding step on these buffers, for tokens of the shapes, strides and dtypes of these.

    A backend may offer its own `prepare_step`, beside `can_step(device, order, head_dim, value_dim) -> bool`. No autograd,
    tracer or dispatch mode is active on these tensors.

    Args:
        q, k, v: one token of each sequence, (B, Hq, 1, D), (B, Hkv, 1, D) and (B, Hkv, 1, Dv), of any floating dtypes.
        total: the sum over older keys, (B, Hkv, F, Dv + 1), contiguous; None if there is none.
        recent_k: (B, Hkv, R, D), contiguous, in the dtype of the sums: room for R tokens.
        recent_u: (B, Hkv, R, Dv + 1), the same.
        recent_decay: (B, Hkv, R), the same. None if tokens do not decay.
        total_decay: (B, Hkv), contiguous, of the dtype `wide`: the total of log_decay over the keys of the sum, or None.
        log_decay: (B, Hkv, 1) in the dtype of the sums, None if and only if `recent_decay` is.
        scale: a number; multiplies `head_scale` where there is one.
        normalize: "standardize", "rms" or "none".

    Returns:
        step(q, k, v, head_scale, key_mask, log_decay, recent_count, fold) -> (B, Hq, 1, Dv) in the dtype of v.
        Of `recent_count` recent tokens the `fold` oldest join `total` in place first, and the others move up. Then k̂,
        u = [v, 1] and log_decay are written behind them. The query sees the recent tokens and its own, each faded by the
        decays of the tokens after it, and the sum faded by the decays of all of them.
        head_scale: one per query head, (Hq,), or None.
        key_mask: (B, 1), bool, or None: where it is False, k̂, u and log_decay are zeros, whatever k, v and log_decay hold.
        log_decay: values above 0 or not finite are refused before anything is written. `fastmax.decay.bounded` ones are kept.
    """
    assert (recent_decay is None) == (log_decay is None), (q.shape, k.shape, v.shape)
    room = Recent(recent_k, recent_u, recent_decay, True)
    pairs = make_pairs(q.shape[3], recent_k.dtype, recent_k.device) if order == 2 else None
    return partial(_step, room, total, total_decay, order, scale, normalize, pairs)


def _step(
    room: Recent,
    total: Tensor | None,
    total_decay: Tensor | None,
    order: int,
    scale: float,
    normalize: str,
    pairs: Pairs | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    head_scale: Tensor | None,
    key_mask: Tensor | None,
    log_decay: Tensor | None,
    recent_count: int,
    fold: int,
) -> Tensor:
    dtype = room.keys.dtype
    if log_decay is not None:
        log_decay = log_decay if key_mask is None else torch.where(key_mask.unsqueeze(1), log_decay, 0)
        if log_decay.is_cpu:  # on a GPU it would be a synchronization
            check_decays(log_decay)
        log_decay = bounded(log_decay)
    if fold:
        assert total is not None
        oldest, values = room.split(fold)[0], room.values[:, :, :fold]
        if oldest.decays is not None:
            kept = fading(oldest.decays, None, 1).mT  # of the sum, then of each token
            total.mul_(kept[:, :, :1])
            values = values * kept[:, :, 1:]
            if total_decay is not None:
                total_decay.add_(oldest.decays.sum(2, dtype=total_decay.dtype))
        total.add_(monomials(oldest.keys, order, pairs).mT @ values)
        for x in (room.keys, room.values, room.decays):
            if x is not None:
                x[:, :, : recent_count - fold] = x[:, :, fold:recent_count].clone()
        recent_count -= fold
    new = Recent.of(k, v, key_mask, log_decay, dtype=dtype, normalize=normalize)
    for place, x in ((room.keys, new.keys), (room.values, new.values), (room.decays, new.decays)):
        if place is not None and x is not None:
            place.narrow(2, recent_count, 1).copy_(x)
    recent = room.split(recent_count + 1)[0]
    query = scaled_query(q, scale if head_scale is None else scale * head_scale, dtype, normalize)
    return attend(query, total, recent, order=order, first=None, pairs=pairs).to(v.dtype)


def scaled_query(query: Tensor, scale: float | Tensor, dtype: torch.dtype, normalize: str) -> Tensor:
    """Return queries (B, Hq, N, D) as `attend` takes them. A scale of shape (Hq,) has one value per head."""
    query = normalized(query.to(dtype), normalize)
    if isinstance(scale, Tensor) and scale.dim():
        scale = scale[:, None, None]
    return query * (scale.to(dtype) if isinstance(scale, Tensor) else scale)


def best_step(device: torch.device, order: int, head_dim: int, value_dim: int) -> Callable[..., Step]:
    """Return the `prepare_step` of the first backend that has one for such a state, else the definition."""
    for name in NAMES:
        backend = load(name)
        can_step = getattr(backend, "can_step", None)
        if can_step is not None and can_step(device, order, head_dim, value_dim):
            prepare: Callable[..., Step] = backend.prepare_step  # type: ignore[attr-defined]
            return prepare
    return prepare_step
