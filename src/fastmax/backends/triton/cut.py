"""The cut of a call: the dtype of its products, its tiles, the shape of its state, and parts that fit into memory."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from fastmax.backends.triton.precision import Products, products_of
from fastmax.backends.triton.slots import ceil_div
from fastmax.backends.triton.states import Shape
from fastmax.backends.triton.tiles import Tiles, padded, planned, tiles_for
from fastmax.call import Call
from fastmax.plan import Plan

BUDGET = 256 << 20
"""Bytes that the states of all chunks may take at one time; at least one chunk of one head is held."""


class Cut(NamedTuple):
    products: Products
    tiles: Tiles
    shape: Shape

    @staticmethod
    def of(call: Call, plan: Plan, arch: str, tiles: Tiles | None = None) -> "Cut":
        d, dv, order = padded(call.head_dim), padded(call.value_dim), call.options.order
        products = products_of(call.q.dtype, call.k.dtype, call.v.dtype, arch)
        tiles = planned(tiles or tiles_for(arch, d, dv, order, products.dtype), plan)
        return Cut(products, tiles, Shape(call.head_dim, call.value_dim, d, dv, order, tiles.block))

    @property
    def slot_bytes(self) -> int:
        """Return the bytes of the state of one key head at one chunk."""
        return self.shape.rows * self.shape.dv * self.products.dtype.itemsize + 4 * self.shape.column


class HeadGroup(NamedTuple):
    """Some key heads, and the query heads that read them, as a separate call."""

    call: Call
    heads: slice
    query_heads: slice


def parts(call: Call, plan: Plan, arch: str) -> Iterator[HeadGroup]:
    """Yield the whole call, or groups of heads if it is packed: only the device knows where its sequences end."""
    heads, groups = call.k.shape[1], max(1, call.groups)
    at_once = max(1, heads)
    if call.cu_seqlens_q is not None and call.options.is_causal:
        cut = Cut.of(call, plan, arch)
        slots = ceil_div(call.q.shape[2] + call.k.shape[2], cut.tiles.chunk) + call.state_shape[0]
        at_once = min(at_once, max(1, budget_of(plan) // max(1, slots * cut.slot_bytes)))
    if at_once == max(1, heads):
        yield HeadGroup(call, slice(None), slice(None))
        return
    for first in range(0, heads, at_once):
        own, queries = slice(first, first + at_once), slice(first * groups, (first + at_once) * groups)
        mask = call.key_mask
        yield HeadGroup(
            replace(
                call,
                q=call.q[:, queries],
                k=call.k[:, own],
                v=call.v[:, own],
                head_scale=None if call.head_scale is None else call.head_scale[queries],
                log_decay=None if call.log_decay is None else call.log_decay[:, own],
                key_mask=mask if mask is None or mask.shape[1] == 1 else mask[:, own],
                state_in=None if call.state_in is None else call.state_in[:, own],
            ),
            own,
            queries,
        )


def budget_of(plan: Plan) -> int:
    """Return the budget in bytes. For tests, `feature_budget` sets it in elements of the state."""
    return BUDGET if plan.feature_budget is None else 4 * plan.feature_budget
