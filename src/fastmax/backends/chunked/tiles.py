"""The three primitives, accumulate, read and read's gradient, and the dense form, on tiles of one group of heads.

Every tile is loaded from the raw inputs, converted to the accumulation dtype and standardized on the way, so that nothing
of the size of a whole input is copied. Queries of the heads that share a key head are stacked: (B, Hkv, G * n, D).
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from fastmax.backends.chunked.schedule import Attend
from fastmax.core import EPS, similarity, standardize
from fastmax.features import phi, phi_vjp
from fastmax.problem import OutputGrads, Problem

FEATURE_BUDGET = 1 << 20
"""How many elements the features of one tile may have: enough for an efficient product, few enough for a cache."""

DENSE_TILE = 512


def tiles(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    for a in range(start, stop, size):
        yield a, min(a + size, stop)


def feature_tile(p: Problem) -> int:
    """How many tokens of all these heads are turned into features at a time."""
    return max(16, FEATURE_BUDGET // max(1, p.q.shape[0] * p.q.shape[1] * p.features))


def query_tiles(p: Problem, step: Attend) -> Iterator[tuple[int, int]]:
    sees_keys = step.key_stop > step.key_start
    return tiles(step.start, step.stop, min(DENSE_TILE, feature_tile(p)) if sees_keys else feature_tile(p))


def key_tiles(p: Problem, step: Attend, a: int, b: int) -> Iterator[tuple[int, int, int | None]]:
    """The keys that queries a:b see in the dense form, and the diagonal above which a tile is masked, if it is."""
    stop = min(step.key_stop, b) if p.is_causal else step.key_stop
    for c, d in tiles(step.key_start, stop, DENSE_TILE):
        yield c, d, a - c if p.is_causal and d > a + 1 else None


def load_queries(p: Problem, a: int, b: int) -> Tensor:
    """q̂ * scale of queries a:b, (B, Hkv, G * (b - a), D)."""
    x = p.q[:, :, a:b].to(p.dtype)
    x = standardize(x) if p.normalize else x
    return stack(x * query_scale(p), p)


def query_scale(p: Problem) -> float | Tensor:
    return p.scale if p.head_scale is None else p.head_scale.to(p.dtype)[:, None, None] * p.scale


def store_query_grads(p: Problem, a: int, b: int, d: Tensor, dq: Tensor, d_scale: Tensor | None) -> None:
    """From the gradient of q̂ * scale to that of the raw queries a:b and of the scales."""
    x = p.q[:, :, a:b].to(p.dtype)
    d = d.reshape(x.shape)
    if d_scale is not None:
        x_hat = standardize(x) if p.normalize else x
        d_scale += (d * x_hat).sum((0, 2, 3)) * p.scale
    d = d * query_scale(p)
    dq[:, :, a:b] = standardize_vjp(x, d) if p.normalize else d


def load_keys(p: Problem, a: int, b: int) -> tuple[Tensor, Tensor]:
    """k̂ (B, Hkv, n, D) and u = [v, 1] (B, Hkv, n, Dv + 1) of keys a:b. A key that does not count is all zeros."""
    x, v = p.k[:, :, a:b].to(p.dtype), p.v[:, :, a:b]
    u = torch.ones(*v.shape[:-1], v.shape[-1] + 1, dtype=p.dtype, device=v.device)
    u[..., :-1] = v
    if p.key_mask is not None:
        drop = ~p.key_mask[:, :, a:b, None]
        x, u = x.masked_fill(drop, 0), u.masked_fill_(drop, 0)
    return standardize(x) if p.normalize else x, u


def store_key_grads(p: Problem, a: int, b: int, dk_hat: Tensor, dv: Tensor, out_k: Tensor, out_v: Tensor) -> None:
    """From the gradients of k̂ and of the values that count to those of the raw keys and values a:b."""
    d, dv = dk_hat[:, :, a:b], dv[:, :, a:b]
    drop = None if p.key_mask is None else ~p.key_mask[:, :, a:b, None]
    if p.normalize:
        x = p.k[:, :, a:b].to(p.dtype)
        d = standardize_vjp(x if drop is None else x.masked_fill(drop, 0), d)
    out_k[:, :, a:b] = d if drop is None else d.masked_fill(drop, 0)
    out_v[:, :, a:b] = dv if drop is None else dv.masked_fill(drop, 0)


def store_outputs(a: int, b: int, f: Tensor, o: Tensor, g: Tensor) -> None:
    """[19]: o = f / g of queries a:b; zero where no key is left, which makes g exactly zero."""
    f = f.reshape(*o.shape[:2], b - a, f.shape[-1])
    denominator = f[..., -1]
    g[:, :, a:b] = denominator
    o[:, :, a:b] = f[..., :-1] * _inverse(denominator)


def load_output_grads(p: Problem, a: int, b: int, o: Tensor, g: Tensor, grads: OutputGrads) -> Tensor:
    """w = [do / g, -(do . o) / g + dg], the gradient of [f, g] of queries a:b, stacked."""
    w = p.q.new_zeros(*p.q.shape[:2], b - a, p.value_dim + 1, dtype=p.dtype)
    if grads.o is not None:
        do = grads.o[:, :, a:b].to(p.dtype) * _inverse(g[:, :, a:b])
        w[..., :-1] = do
        w[..., -1] = -(do * o[:, :, a:b]).sum(-1)
    if grads.g is not None:
        w[..., -1] += grads.g[:, :, a:b]
    return stack(w, p)


def _inverse(g: Tensor) -> Tensor:
    return torch.where(g == 0, 0, 1 / g).unsqueeze(-1)


def stack(x: Tensor, p: Problem) -> Tensor:
    """(B, Hq, n, ...) -> (B, Hkv, G * n, ...)."""
    batch, _, tokens, *rest = x.shape
    return x.reshape(batch, p.k.shape[1], p.groups * tokens, *rest)


def standardize_vjp(x: Tensor, d: Tensor) -> Tensor:
    """The gradient of x from that of standardize(x)."""
    x = x - x[..., :1]
    x = x - x.mean(-1, keepdim=True)
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)
    x_hat = x * rstd
    return (d - d.mean(-1, keepdim=True) - x_hat * (d * x_hat).mean(-1, keepdim=True)) * rstd


def accumulate(state: Tensor, x: Tensor, b: Tensor, order: int) -> None:
    """state += phi(x)^T b, for x of (B, H, n, D) and b of (B, H, n, J)."""
    features = phi(x.mT.contiguous(), order)
    state.flatten(0, 1).baddbmm_(features.flatten(0, 1), b.flatten(0, 1))


def read(state: Tensor, x: Tensor, order: int) -> Tensor:
    """phi(x) state, (B, H, n, J)."""
    return phi(x.mT.contiguous(), order).mT @ state


def read_vjp(state: Tensor, x: Tensor, b: Tensor, order: int) -> Tensor:
    """The gradient of x from that of read(state, x), which is b: J_phi(x)^T (state b)."""
    return phi_vjp(x.mT.contiguous(), state @ b.mT, order).mT


def dense(x: Tensor, y: Tensor, u: Tensor, p: Problem, diagonal: int | None) -> Tensor:
    """f(x y^T) u for a tile of stacked queries x and keys y; query i sees the keys j <= i + diagonal."""
    return _causal(similarity(x @ y.mT, p.order), p, diagonal) @ u


def dense_vjp(
    x: Tensor, y: Tensor, u: Tensor, w: Tensor, p: Problem, diagonal: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, y and u from that of dense(x, y, u), which is w."""
    s = x @ y.mT
    ds = _causal((w @ u.mT).mul_(similarity(s, p.order - 1)), p, diagonal)
    return ds @ y, ds.mT @ x, _causal(similarity(s, p.order), p, diagonal).mT @ w


def _causal(weights: Tensor, p: Problem, diagonal: int | None) -> Tensor:
    if diagonal is None:
        return weights
    *lead, queries, keys = weights.shape
    weights.view(*lead, p.groups, queries // p.groups, keys).tril_(diagonal)
    return weights
