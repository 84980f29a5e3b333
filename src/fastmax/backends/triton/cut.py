"""The cut of a call: form, dtype of products, tiles, shape of the state, and how many heads fit into memory."""

from typing import Any, NamedTuple

import torch

from fastmax.backends.triton.device import memory
from fastmax.backends.triton.slots import ceil_div
from fastmax.backends.triton.states import Shape
from fastmax.backends.triton.tiles import Tiles, padded, planned, tiles_for
from fastmax.call import Call
from fastmax.plan import Plan, cheaper_form, dense_costs_too_much

BUDGET = 512 << 20
"""Bytes that the states of all chunks may take at one time; at least one chunk of one head is held."""

MAX_TOTAL_PIECES = 16
"""Pieces of a sequence of which only the total is read. More would fill no GPU better, and cost memory."""


class Products(NamedTuple):
    """The dtype of the products of the kernels; sums are always in fp32.

    bf16 has the range that sums need. fp16 lacks it, so its products are those of tf32, which has the same precision. A
    product of fp32 is three of tf32; AMD's cards have fp32 on their matrix cores.
    """

    dtype: torch.dtype  # of normalized tokens and of the states of chunks
    precision: str  # of products of fp32, as Triton calls it
    emulated: bool = False  # bf16 has no multiplication of its own: features are made in fp32

    @property
    def language(self) -> Any:
        """Return the dtype as Triton's."""
        import triton.language as tl

        return tl.bfloat16 if self.dtype == torch.bfloat16 else tl.float32


def products_of(q: torch.dtype, k: torch.dtype, v: torch.dtype, arch: str) -> Products:
    if q == k == v == torch.bfloat16:
        return Products(torch.bfloat16, "ieee", emulated=arch.startswith("gfx"))
    half = (torch.bfloat16, torch.float16)
    amd = arch.startswith("gfx")
    if q in half and k in half and v in half:
        return Products(torch.float32, "ieee" if amd else "tf32")
    return Products(torch.float32, "ieee" if amd else "tf32x3")


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
