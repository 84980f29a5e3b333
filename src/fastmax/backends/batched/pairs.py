"""The dense form inside slots, f(q k^T) u of all heads and slots in one product each, and its gradient."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fastmax.backends.batched.features import blocks, weighed
from fastmax.backends.batched.products import add_product, product
from fastmax.backends.batched.slots import sequence_of
from fastmax.backends.batched.work import Work
from fastmax.core import similarity

BYTES_PER_PAIR = 16
ROW_TILES = 4
"""A causal tile of rows sees the keys up to its last one, so 4 tiles spare 37 % of the pairs."""


class Tile(NamedTuple):
    """Some slots, the rows start:stop of their queries, and the keys before `keys`."""

    slots: slice
    start: int
    stop: int
    keys: int


def tiles(work: Work) -> Iterator[Tile]:
    """Yield tiles whose weights fit the budget."""
    call = work.call
    queries, keys = (slots.size for slots in work.slots)
    slots = work.slots[0].count
    heads = call.q.shape[0] * call.q.shape[1]
    fitting = max(1, work.budget // max(1, BYTES_PER_PAIR * heads * keys))  # rows of queries
    cuts = call.options.is_causal and not (work.is_dense and call.cu_seqlens_q is not None) and not call.drops_features
    rows = work.plan.dense_tile or (max(128, -(-queries // ROW_TILES)) if cuts else max(1, queries))
    rows = max(1, min(rows, fitting)) if not call.drops_features else max(1, queries)
    at_once = max(1, fitting // rows)
    for first in range(0, slots, at_once):
        for a in range(0, queries, rows):
            b = min(a + rows, queries)
            yield Tile(slice(first, min(first + at_once, slots)), a, b, min(b, keys) if cuts else keys)


def attend(work: Work, f: Tensor) -> None:
    """Add the sums over the keys of each slot to f, (B, Hkv, slots, G * n, J)."""
    values = work.values.to(work.half)
    for tile in tiles(work):
        q, k = _tokens(work, tile)
        weights = _weights(work, tile, q, k)
        _add(work, f, tile, weights, values[:, :, tile.slots, : tile.keys])


def attend_vjp(work: Work, w: Tensor, dq: Tensor, dk: Tensor, du: Tensor) -> None:
    """Add the gradients of queries, keys and values, given that of the sums."""
    call, dtype, order = work.call, dq.dtype, work.call.options.order
    values, narrow = work.values.to(work.half), w.to(work.half)
    for tile in tiles(work):
        q, k = _tokens(work, tile)
        at, keys = tile.slots, tile.keys
        mine, u = _stacked_rows(work, narrow, tile), values[:, :, at, :keys]
        df = product(mine, u.mT, dtype)
        if call.drops_features:
            _dropped_vjp(work, tile, _seen(work, tile, df), mine, dq, dk, du)
            continue
        s = product(q, k.mT, dtype)
        add_product(du[:, :, at, :keys], _similarities(work, tile, s).mT, mine)
        slopes = s if order == 2 else similarity(s, order - 1)
        wide = work.half if work.decays is None else dtype
        ds = _seen(work, tile, torch.mul(df, slopes, out=torch.empty_like(df, dtype=wide))).to(work.half)
        _add(work, dq, tile, ds, k[..., : call.head_dim])
        add_product(dk[:, :, at, :keys], ds.mT, q[..., : call.head_dim])


def _tokens(work: Work, tile: Tile) -> tuple[Tensor, Tensor]:
    return _stacked_rows(work, work.queries.dense, tile), work.keys.dense[:, :, tile.slots, : tile.keys]


def _rows(work: Work, x: Tensor, tile: Tile) -> Tensor:
    """Return the rows of a tile as a view, (B, Hkv, slots, G, rows, ...)."""
    return work.by_group(x[:, :, tile.slots])[..., tile.start : tile.stop, :]


def _add(work: Work, total: Tensor, tile: Tile, a: Tensor, b: Tensor) -> None:
    """Add a product to the rows of a tile."""
    rows = _rows(work, total, tile)
    if work.call.groups == 1:
        add_product(rows.squeeze(3), a, b)
    else:
        rows.add_(work.by_group(product(a, b, total.dtype)))


def _stacked_rows(work: Work, x: Tensor, tile: Tile) -> Tensor:
    return _rows(work, x, tile).flatten(3, 4)


def _weights(work: Work, tile: Tile, q: Tensor, k: Tensor) -> Tensor:
    """Return the weights of a tile, (B, Hkv, slots, G * rows, keys), in the dtype of products."""
    if work.call.drops_features:
        return _seen(work, tile, _dropped_weights(work, tile))
    return _similarities(work, tile, product(q, k.mT, work.call.dtype))


def _similarities(work: Work, tile: Tile, s: Tensor) -> Tensor:
    """Return f of products, which at order 2 are 1 + q . k: (s^2 + 1) / 2."""
    dtype = work.call.dtype if work.decays is not None else work.half
    if work.call.options.order == 2:
        half = torch.full((), 0.5, dtype=s.dtype, device=s.device)
        f = torch.addcmul(half, s, s, value=0.5, out=torch.empty_like(s, dtype=dtype))
    else:
        f = similarity(s, work.call.options.order).to(dtype)
    return _seen(work, tile, f).to(work.half)


def _dropped_weights(work: Work, tile: Tile) -> Tensor:
    """Sum the products of the features that are left: no function of the dot product."""
    total: Tensor | None = None
    for block in blocks(work.call.head_dim, work.call.options.order):
        phi = weighed(work.queries.features(block, tile.slots), block, work.call.head_dim)
        found = phi @ work.keys.features(block, tile.slots).mT
        total = found if total is None else total.add_(found)
    assert total is not None
    return total


def _dropped_vjp(work: Work, tile: Tile, df: Tensor, w: Tensor, dq: Tensor, dk: Tensor, du: Tensor) -> None:
    at = tile.slots
    du[:, :, at] += _seen(work, tile, _dropped_weights(work, tile)).mT @ w
    head_dim = work.call.head_dim
    for block in blocks(head_dim, work.call.options.order):
        work.queries.add_vjp(block, at, weighed(df @ work.keys.features(block, at), block, head_dim), dq)
        phi = work.queries.features(block, at)
        work.keys.add_vjp(block, at, weighed(df.mT @ phi, block, head_dim), dk)


def _seen(work: Work, tile: Tile, weights: Tensor) -> Tensor:
    """Apply decays, the causal mask and the bounds of packed sequences to weights, in place."""
    call = work.call
    packed = work.is_dense and call.cu_seqlens_q is not None
    if not call.options.is_causal and not packed:
        return weights
    each = work.by_group(weights)  # (B, Hkv, slots, G, rows, keys)
    if work.decays is not None:
        c = work.decays[:, :, tile.slots]
        queries, keys = c[..., tile.start : tile.stop, None], c[..., None, : tile.keys]
        each.mul_((queries - keys).clamp_(max=0).to(weights.dtype).exp_().unsqueeze(3))
    if packed:
        each.masked_fill_(~_sees(work, tile), 0)
    else:
        each[..., tile.start :].tril_()  # its rows see all keys before
    return weights


def _sees(work: Work, tile: Tile) -> Tensor:
    """Return True where a query of packed sequences sees a key, (rows, keys)."""
    call = work.call
    assert call.cu_seqlens_q is not None
    assert call.cu_seqlens_k is not None
    ends = [x.to(torch.int64) for x in (call.cu_seqlens_q, call.cu_seqlens_k)]
    queries, keys = (torch.arange(a, b, device=call.q.device) for a, b in ((tile.start, tile.stop), (0, tile.keys)))
    of_query, of_key = sequence_of(ends[0], queries), sequence_of(ends[1], keys)
    sees = of_query[:, None] == of_key
    if call.options.is_causal:
        sees &= (queries - ends[0][of_query])[:, None] >= keys - ends[1][of_key]
    return sees
