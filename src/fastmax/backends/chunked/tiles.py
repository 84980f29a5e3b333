"""The three primitives, accumulate, read and read's gradient, and the dense form, on tiles of one group of heads.

Every tile is loaded from the raw inputs, converted to the accumulation dtype and normalized on the way, so that nothing
of the size of a whole input is copied. Queries of the heads that share a key head are stacked: (B, Hkv, G * n, D).

Sums are about a centre c, the mean of some keys, so that keys that are alike lose no digits. With b = q . c and f_n of
order n, the derivatives of f_n are those of lower order:

    f_n(q . k) = sum over r of f_(n-r)(b) phi_r(q) . phi_r(k - c)

so features of degree r are those of k - c for keys, and times f_(n-r)(b) for queries. It is exact for any c.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import isfinite

import torch
from torch import Tensor
from torch.nn.functional import pad

from fastmax import dropout
from fastmax.backends.chunked.decay import Decay
from fastmax.backends.chunked.parts import Work
from fastmax.call import OutputGrads
from fastmax.core import normalized, normalized_vjp, similarity
from fastmax.features import block_size, phi, phi_vjp
from fastmax.parts import gradient_of_sums, inverse
from fastmax.plan import Attend

FEATURE_BUDGET = 1 << 20
"""The most elements that the features of one tile may have: enough for an efficient product, few enough for a cache."""

MOST_SUMMED = 2048
"""Tokens that are summed from zero before their sum is added to the state: two levels of sums lose less to rounding
than one. Added to the state one by one, the terms of a million keys lost 4e-4 of it in fp32."""

DENSE_TILE = 512

CENTRE_KEYS = 128
"""Sums are exact about any point: the mean of some keys is as good as that of all, whose normalization takes time."""


@dataclass(frozen=True)
class Tile:
    """Tokens a:b of the queries or keys; their features are computed once, at the first use."""

    x: Tensor  # (B, Hkv, n, D)
    order: int
    a: int
    b: int
    masks: dropout.Dropout | None
    centre: Tensor | None  # (B, Hkv, 1, D)
    are_keys: bool

    @cached_property
    def phi(self) -> Tensor:
        """Return the features about the centre that dropout keeps, (B, Hkv, F, n)."""
        return self._scale(self._drop(phi(self._shifted(), self.order)))

    def phi_vjp(self, d: Tensor) -> Tensor:
        """Return the gradient of x from that of its features, which it overwrites."""
        x = self._shifted()
        if self.centre is None or self.are_keys:
            return phi_vjp(x, self._drop(d), self.order).mT
        b, lower = self._on_centre, self._by_degree(phi(x, self.order - 1))
        bends = zip(lower, self._by_degree(d)[:-1], reversed(range(self.order)), strict=True)
        bend = sum(
            ((low * high).sum(-2, keepdim=True) * similarity(b, order) for low, high, order in bends), b.new_zeros(1)
        )
        return phi_vjp(x, self._scale(d), self.order).mT + bend.mT * self.centre

    def _shifted(self) -> Tensor:
        """Return x, keys less the centre, as (B, Hkv, D, n)."""
        x = self.x if self.centre is None or not self.are_keys else self.x - self.centre
        return x.mT.contiguous()

    @cached_property
    def _on_centre(self) -> Tensor:
        """Return b, (B, Hkv, 1, n)."""
        assert self.centre is not None
        return self.centre @ self.x.mT

    def _by_degree(self, features: Tensor) -> tuple[Tensor, ...]:
        head_dim, sizes = self.x.shape[-1], [1]
        while sum(sizes) < features.shape[-2]:
            sizes.append(block_size(head_dim, len(sizes)))
        return torch.split(features, sizes, -2)

    def _scale(self, features: Tensor) -> Tensor:
        """Multiply features of queries by the derivatives of f at the centre, in place; that of the last degree is 1."""
        if self.centre is not None and not self.are_keys:
            for degree, block in enumerate(self._by_degree(features)[:-1]):
                block.mul_(similarity(self._on_centre, self.order - degree))
        return features

    def _drop(self, features: Tensor) -> Tensor:
        """Multiply features by the dropout masks in place, each stacked query head by its own mask."""
        if self._kept is not None:
            rows, kept = self._kept
            batch, heads = features.shape[:2]
            features[:, :, rows].view(batch, heads, kept.shape[2], -1, self.b - self.a).mul_(kept)
        return features

    @cached_property
    def _kept(self) -> tuple[slice, Tensor] | None:
        if self.masks is None or self.masks.drops_tokens:
            return None
        rows = dropout.dropped_rows(self.masks.mode, self.x.shape[-1], self.order)
        kept = self.masks.feature_factors(rows, self.a, self.b, self.x.dtype)
        return rows, kept.view(*self.x.shape[:2], -1, rows.stop - rows.start, self.b - self.a).transpose(2, 3)


def tiles(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    for a in range(start, stop, size):
        yield a, min(a + size, stop)


def feature_tile(p: Work) -> int:
    """Return the number of tokens of all these heads that are turned into features at a time."""
    budget = p.plan.feature_budget or FEATURE_BUDGET
    return min(MOST_SUMMED, max(16, budget // max(1, p.q.shape[0] * p.q.shape[1] * p.features)))


def dense_tile(p: Work) -> int:
    return p.plan.dense_tile or DENSE_TILE


def query_tiles(p: Work, step: Attend) -> Iterator[tuple[int, int]]:
    sees_keys, needs_features = step.key_stop > step.key_start, step.reads_state or p.drops_features
    size = feature_tile(p) if needs_features else dense_tile(p)
    return tiles(step.start, step.stop, min(dense_tile(p), size) if sees_keys else size)


def key_tiles(p: Work, step: Attend, a: int, b: int) -> Iterator[tuple[int, int, int | None]]:
    """Yield the keys that queries a:b see in the dense form, with the diagonal above which a tile is masked, or None."""
    is_causal = p.options.is_causal
    stop = min(step.key_stop, b) if is_causal else step.key_stop
    for c, d in tiles(step.key_start, stop, dense_tile(p)):
        yield c, d, a - c if is_causal and d > a + 1 else None


def load_queries(p: Work, a: int, b: int) -> Tile:
    """Return q̂ * scale of queries a:b."""
    x = p.q[:, :, a:b].to(p.dtype)
    x = _drop_tokens(normalized(x, p.options.normalize), p.query_masks, a, b) * p.scale
    x = _stack(x if p.head_scale is None else x * _per_head(p), p)
    return Tile(x, p.options.order, a, b, p.query_masks, p.centre, are_keys=False)


def zeros(tile: Tile, columns: int) -> Tensor:
    """Allocate a sum, (B, Hkv, n, columns)."""
    return tile.x.new_zeros(*tile.x.shape[:-1], columns)


def store_query_grads(p: Work, a: int, b: int, d: Tensor, dq: Tensor, d_scale: Tensor) -> None:
    """Convert the gradient of q̂ * scale to that of the raw queries a:b and of the scales."""
    x = p.q[:, :, a:b].to(p.dtype)
    d = _drop_tokens(d.reshape(x.shape), p.query_masks, a, b) * p.scale
    if p.head_scale is not None:
        d_scale += (d * normalized(x, p.options.normalize)).sum((0, 2, 3))
        d = d * _per_head(p)
    dq[:, :, a:b] = normalized_vjp(x, d, p.options.normalize)


def load_keys(p: Work, a: int, b: int) -> tuple[Tile, Tensor]:
    """Return k̂ and u = [v, 1], (B, Hkv, n, Dv + 1), of keys a:b. A key that does not count is all zeros."""
    x, v = p.k[:, :, a:b].to(p.dtype), p.v[:, :, a:b]
    u = torch.ones(*v.shape[:-1], v.shape[-1] + 1, dtype=p.dtype, device=v.device)
    u[..., :-1] = v
    if p.key_mask is not None:
        drop = ~p.key_mask[:, :, a:b, None]
        x, u = x.masked_fill(drop, 0), u.masked_fill_(drop, 0)
    x = normalized(x, p.options.normalize)
    return Tile(_drop_tokens(x, p.key_masks, a, b), p.options.order, a, b, p.key_masks, p.centre, are_keys=True), u


def mean_of_keys(p: Work, a: int, b: int) -> Tensor:
    """Return the mean of k̂ of at most 2 CENTRE_KEYS keys that are spread over a:b, (B, Hkv, 1, D).

    It is reduced by what independent keys of that spread have by chance. A mean that is mostly one long key would cost the
    others their digits.
    """
    some = slice(a, b, max(1, (b - a) // CENTRE_KEYS))
    x = p.k[:, :, some].to(p.dtype)
    counts = torch.ones_like(x[..., :1]) if p.key_mask is None else p.key_mask[:, :, some, None].to(x.dtype)
    x = normalized(x.masked_fill(counts == 0, 0), p.options.normalize)
    total, used = x.sum(2, keepdim=True), counts.sum((2, 3), keepdim=True)
    length, squares = (y.square().sum((2, 3), keepdim=True) for y in (total, x))
    by_chance = (used * squares - length) / (used - 1).clamp(min=1)
    return total / used.clamp(min=1) * (1 - by_chance / length).nan_to_num(0).clamp(min=0)


def store_key_grads(p: Work, a: int, b: int, dk_hat: Tensor, dv: Tensor, out_k: Tensor, out_v: Tensor) -> None:
    """Convert the gradients of k̂ and of the values that count to those of the raw keys and values a:b."""
    d, dv = _drop_tokens(dk_hat[:, :, a:b], p.key_masks, a, b), dv[:, :, a:b]
    drop = None if p.key_mask is None else ~p.key_mask[:, :, a:b, None]
    x = p.k[:, :, a:b].to(p.dtype)
    d = normalized_vjp(x if drop is None else x.masked_fill(drop, 0), d, p.options.normalize)
    out_k[:, :, a:b] = d if drop is None else d.masked_fill(drop, 0)
    out_v[:, :, a:b] = dv if drop is None else dv.masked_fill(drop, 0)


def store_outputs(a: int, b: int, f: Tensor, o: Tensor, g: Tensor) -> None:
    """Store o = f / g [19] of queries a:b. A query without keys has g = 0 exactly and gets zeros."""
    f = f.reshape(*o.shape[:2], b - a, f.shape[-1])
    denominator = f[..., -1]
    g[:, :, a:b] = denominator
    o[:, :, a:b] = f[..., :-1] * inverse(denominator).unsqueeze(-1)


def load_output_grads(p: Work, a: int, b: int, o: Tensor, g: Tensor, grads: OutputGrads) -> Tensor:
    """Return the gradient of [f, g] of queries a:b, stacked."""
    do, dg = (None if x is None else x[:, :, a:b] for x in grads[:2])
    return _stack(gradient_of_sums(o[:, :, a:b], g[:, :, a:b], OutputGrads(do, dg, None), p.value_dim + 1, p.dtype), p)


def accumulate(state: Tensor, terms: Iterable[tuple[Tile, Tensor]]) -> None:
    """Add phi(x)^T b to the state for each tile x and its b, (B, Hkv, n, J)."""
    part, tokens = None, 0
    for tile, b in terms:
        phi, rows = tile.phi.flatten(0, 1), b.flatten(0, 1)
        part = phi @ rows if part is None else part.baddbmm_(phi, rows)
        tokens += tile.b - tile.a
        if tokens >= MOST_SUMMED:
            state += part.view_as(state)
            part, tokens = None, 0
    if part is not None:
        state += part.view_as(state)


def read(state: Tensor, tile: Tile) -> Tensor:
    """Return phi(x) state, (B, Hkv, n, J)."""
    return tile.phi.mT @ state


def read_vjp(state: Tensor, tile: Tile, b: Tensor) -> Tensor:
    """Return J_phi(x)^T (state b), the gradient of x if b is that of read(state, x)."""
    return tile.phi_vjp(state @ b.mT)


def dense(x: Tile, y: Tile, u: Tensor, p: Work, diagonal: int | None, decay: Decay | None) -> Tensor:
    """Return f(x y^T) u for a tile of stacked queries x and keys y; query i sees the keys j <= i + diagonal."""
    # with features dropped f(x . y) is no function of the dot product, only of those that are left
    f = x.phi.mT @ y.phi if p.drops_features else similarity(x.x @ y.x.mT, p.options.order)
    weights = _seen(f, x, y, p, diagonal, decay)
    # without a synchronization
    if diagonal is None or (u.is_cpu and isfinite(u.sum().item())):
        return weights @ u
    # zero times inf is NaN, so values that are not finite are added only to the queries that see them
    finite = u.isfinite()
    seen = pad(torch.where(finite, 0, u).cumsum(2), (0, 0, 1, 0))
    keys_seen = (torch.arange(x.b - x.a, device=u.device) + diagonal + 1).clamp(max=y.b - y.a)
    return weights @ torch.where(finite, u, 0) + seen[:, :, keys_seen].repeat(1, 1, p.groups, 1)


def dense_vjp(
    x: Tile, y: Tile, u: Tensor, w: Tensor, p: Work, diagonal: int | None, decay: Decay | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, y and u if w is that of dense(x, y, u)."""
    df = _seen(w @ u.mT, x, y, p, diagonal, decay)
    if p.drops_features:
        f = _seen(x.phi.mT @ y.phi, x, y, p, diagonal, decay)
        return x.phi_vjp(y.phi @ df.mT), y.phi_vjp(x.phi @ df), f.mT @ w
    s = x.x @ y.x.mT
    ds = df.mul_(similarity(s, p.options.order - 1))
    return ds @ y.x, ds.mT @ x.x, _seen(similarity(s, p.options.order), x, y, p, diagonal, decay).mT @ w


def faded(x: Tensor, factors: Tensor, p: Work) -> Tensor:
    """Multiply rows of stacked queries, (B, Hkv, G * n, J), by a factor per token, (B, Hkv, 1, n, 1)."""
    batch, heads, _, columns = x.shape
    return (x.view(batch, heads, p.groups, -1, columns) * factors).flatten(2, 3)


def _drop_tokens(x: Tensor, masks: dropout.Dropout | None, a: int, b: int) -> Tensor:
    return x if masks is None or not masks.drops_tokens else x * masks.token_factors(a, b, x.dtype)


def _per_head(p: Work) -> Tensor:
    assert p.head_scale is not None
    return p.head_scale.to(p.dtype)[:, None, None]


def _stack(x: Tensor, p: Work) -> Tensor:
    """Reshape (B, Hq, n, ...) to (B, Hkv, G * n, ...)."""
    batch, _, tokens, *rest = x.shape
    return x.reshape(batch, p.k.shape[1], p.groups * tokens, *rest)


def _seen(weights: Tensor, x: Tile, y: Tile, p: Work, diagonal: int | None, decay: Decay | None) -> Tensor:
    """Apply decays and the causal mask to the weights of stacked queries and keys, in place."""
    if diagonal is None and decay is None:
        return weights
    *lead, queries, keys = weights.shape
    stacked = weights.view(*lead, p.groups, queries // p.groups, keys)
    if decay is not None:
        stacked.mul_(decay.of_pairs(x.a, x.b, y.a, y.b))
    if diagonal is not None:
        stacked.tril_(diagonal)
    return weights
