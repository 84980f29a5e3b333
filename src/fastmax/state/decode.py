"""A few queries on a state: they read the sum, and see the recent tokens densely. And one step of decoding, in place."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from fastmax.backends import NAMES, load
from fastmax.core import normalized, similarity
from fastmax.decay import wide
from fastmax.features import phi
from fastmax.state.recent import Recent


def attend(query: Tensor, total: Tensor | None, recent: Recent, *, order: int, first: int | None) -> Tensor:
    """(B, Hq, N, D), normalized and scaled -> (B, Hq, N, Dv), zeros where there is no key.

    Query n sees the recent keys up to `first` + n, or all of them if that is None. Differentiable, unless a sum of an order
    above 2 is read.
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
        old = monomials(q, order) @ total
        f = f + (old if kept is None else old * kept[..., :1])
    g = f[..., -1:]
    o = torch.where(g == 0, 0, f[..., :-1] / torch.where(g == 0, 1, g))
    return o.reshape(batch, heads, count, o.shape[-1])


def fading(decays: Tensor, first: int | None, count: int) -> Tensor:
    """What queries keep of the sum and of each recent key, (B, Hkv, N, 1 + n); (B, Hkv, 1, 1 + n) if all come last.

    The decays, (B, Hkv, n), of the tokens after a key up to the query fade it; nothing is kept of one after the query.
    """
    c = pad(decays.to(wide(decays.device)).cumsum(2), (1, 0)).unsqueeze(2)
    if first is None:
        return (c[..., -1:] - c).exp().to(decays.dtype)
    now = slice(first + 1, first + 1 + count)
    places = torch.arange(c.shape[3], device=decays.device)
    later = places > places[now, None]
    return (c[..., now].mT - c).masked_fill(later, -torch.inf).exp().to(decays.dtype)


def monomials(x: Tensor, order: int) -> Tensor:
    """(..., N, D) -> (..., N, F): `fastmax.features.phi` for a few tokens, differentiable and traceable up to order 2."""
    if order > 2:
        return phi(x.mT.contiguous(), order).mT
    features = [torch.ones_like(x[..., :1]), x]
    if order == 2:
        i, j = torch.triu_indices(x.shape[-1], x.shape[-1], device=x.device)
        weights = 1 + (0.5**0.5 - 1) * (i == j).to(x.dtype)
        features.append(x[..., i] * x[..., j] * weights)
    return torch.cat(features, -1)


def step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    total: Tensor | None,
    recent_k: Tensor,
    recent_u: Tensor,
    recent_decay: Tensor | None,
    recent_count: int,
    *,
    order: int,
    scale: float,
    head_scale: Tensor | None,
    normalize: str,
    key_mask: Tensor | None,
    log_decay: Tensor | None,
    fold: bool = False,
) -> Tensor:
    """Decode one token per sequence: keep its key and value in place, and return what its query gets, (B, Hq, Dv).

    This is what a backend may offer as its own `step`, beside `can_step(device, order, head_dim, value_dim) -> bool`. Nobody
    watches these tensors: no gradient, no tracer, no mode.

    Args:
        q, k, v: (B, Hq, D), (B, Hkv, D) and (B, Hkv, Dv), of any floating dtypes and strides.
        total: the sum over older keys, (B, Hkv, F, Dv + 1), contiguous; only read, unless `fold`; None if there is none.
        recent_k: (B, Hkv, R, D), contiguous, in the dtype of the sums. k̂ is written at index `recent_count`.
        recent_u: (B, Hkv, R, Dv + 1), likewise. u = [v, 1] is written there.
        recent_decay: (B, Hkv, R), likewise. log_decay is written there. None if nothing ever decayed.
        recent_count: how many recent tokens there are, less than R. The query sees these and its own, each faded by the
            decays of the tokens after it, and the sum faded by the decays of all of them.
        scale, head_scale: a number, and one per query head, (Hq,), or None; the scale is their product.
        normalize: "standardize", "rms" or "none".
        key_mask: (B, 1), bool: where it is False, k̂, u and log_decay are zeros, whatever k and v hold. Or None.
        log_decay: (B, Hkv), <= 0, in the dtype of the sums; None if and only if `recent_decay` is.
        fold: the oldest recent token joins `total` in place first, the others move up, and the new one comes last.

    Returns:
        In the dtype of v.
    """
    dtype = recent_k.dtype
    if fold:
        assert total is not None
        joining = monomials(recent_k[:, :, :1], order).mT @ recent_u[:, :, :1]
        total.copy_((total if recent_decay is None else total * recent_decay[:, :, :1, None].exp()) + joining)
        for x in (recent_k, recent_u, recent_decay):
            if x is not None:
                x[:, :, : recent_count - 1] = x[:, :, 1:recent_count].clone()
        recent_count -= 1
    decay = None if log_decay is None else log_decay.unsqueeze(2)
    if decay is not None and key_mask is not None:
        decay = torch.where(key_mask.unsqueeze(1), decay, 0)
    new = Recent.of(k.unsqueeze(2), v.unsqueeze(2), key_mask, decay, dtype=dtype, normalize=normalize)
    room = Recent(recent_k, recent_u, recent_decay, True)
    for place, x in ((room.keys, new.keys), (room.values, new.values), (room.decays, new.decays)):
        if place is not None and x is not None:
            place.narrow(2, recent_count, 1).copy_(x)
    recent = room.split(recent_count + 1)[0]
    query = scaled_query(q.unsqueeze(2), scale if head_scale is None else scale * head_scale, dtype, normalize)
    return attend(query, total, recent, order=order, first=None).squeeze(2).to(v.dtype)


def scaled_query(query: Tensor, scale: float | Tensor, dtype: torch.dtype, normalize: str) -> Tensor:
    query = normalized(query.to(dtype), normalize)
    if isinstance(scale, Tensor) and scale.dim():
        scale = scale[:, None, None]
    return query * (scale.to(dtype) if isinstance(scale, Tensor) else scale)


def best_step(device: torch.device, order: int, head_dim: int, value_dim: int) -> Callable[..., Tensor]:
    """The `step` of the first backend that has one for such a state, else the one above."""
    for name in NAMES:
        backend = load(name)
        can_step = getattr(backend, "can_step", None)
        if can_step is not None and can_step(device, order, head_dim, value_dim):
            fused: Callable[..., Tensor] = backend.step  # type: ignore[attr-defined]
            return fused
    return step
