"""The cut of a call: form, dtype of products, tiles, shape of the state, and how many heads fit into memory."""

from typing import NamedTuple

import torch

from fastmax.backends.triton.device import memory
from fastmax.backends.triton.precision import Products, products_of
from fastmax.backends.triton.slots import ceil_div
from fastmax.backends.triton.states import Shape
from fastmax.backends.triton.tiles import Tiles, padded, planned, tiles_for
from fastmax.call import Call
from fastmax.plan import Plan, cheaper_form, dense_costs_too_much

BUDGET = 512 << 20
"""Bytes that the states of all chunks may take at one time; at least one chunk of one head is held."""


MAX_TOTAL_PIECES = 16
"""Pieces of a sequence of which only the total is read. More would fill no GPU better, and cost memory."""


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
        """Return the bytes of the states of one key head at one chunk: its sums, and those before it."""
        return self.shape.body * self.products.dtype.itemsize + 4 * (2 * self.shape.size - self.shape.body)


def form_of(call: Call, plan: Plan) -> str:
    """Return the form by the rule; packed sequences count by their mean length, unless a long one makes dense too costly."""
    options = call.options
    if options.order > 2:
        return "dense"
    if not options.is_causal and (call.state_in is not None or options.return_state):
        return "factorized"  # which a state is
    if plan.form is not None:
        return plan.form
    queries, keys = call.q.shape[2], call.k.shape[2]
    dims = call.head_dim, call.value_dim, options.order
    if call.cu_seqlens_q is not None:
        if dense_costs_too_much(queries, keys, *dims):
            return "factorized"
        number = max(1, call.cu_seqlens_q.shape[0] - 1)
        queries, keys = ceil_div(queries, number), ceil_div(keys, number)
    return cheaper_form(queries, keys, *dims, options.is_causal)


def heads_at_once(call: Call, plan: Plan, arch: str) -> int:
    """Return how many heads of all batch elements the budget holds the states of all chunks of; one at least.

    Heads do not depend on one another, so nothing is handed on, and the chunks of a single head fill a GPU.
    """
    units = call.k.shape[0] * call.k.shape[1]
    if units <= 1:
        return units
    cut, dense = Cut.of(call, plan, arch), form_of(call, plan) == "dense"
    packed = call.cu_seqlens_q is not None
    longest = (sum if packed else max)((call.q.shape[2], call.k.shape[2]))
    slots = ceil_div(longest, cut.tiles.chunk) + (call.state_shape[0] if packed else 0)
    if dense or not call.options.is_causal:
        sums = not dense or call.state_in is not None or call.options.return_state
        slots = min(slots, MAX_TOTAL_PIECES * call.state_shape[0] // call.k.shape[0]) if sums else 0
    return min(units, max(1, budget_of(plan, call.q.device) // max(1, slots * cut.slot_bytes)))


def budget_of(plan: Plan, device: torch.device) -> int:
    """Return the budget in bytes: a 64th of a GPU's memory if that is more. Tests set elements of it."""
    if plan.feature_budget is not None:
        return 4 * plan.feature_budget
    return max(BUDGET, memory(device) // 64)
