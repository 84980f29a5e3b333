"""One call on the device: its form, its normalized tokens, its tables, and the spans that it is walked in."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fastmax.backends.triton.cut import Cut, budget_of
from fastmax.backends.triton.fading import Fading, fading
from fastmax.backends.triton.slots import Sequences, Slots, ceil_div
from fastmax.backends.triton.tiles import Tiles
from fastmax.call import Call
from fastmax.plan import Plan, cheaper_form, dense_costs_too_much


@dataclass(frozen=True)
class Stretch:
    """Tokens of every sequence from `start` on, over which chunk states are held at one time; all of them if packed."""

    start: int
    queries: int
    keys: int
    first_chunk: int
    chunks: Slots


class Side(NamedTuple):
    """Queries or keys: raw tokens, the same normalized, where packed sequences begin, and query heads per head."""

    raw: Tensor
    hat: Tensor
    cu: Tensor
    are_queries: bool

    def length(self, span: Stretch) -> int:
        return span.queries if self.are_queries else span.keys


class Launch:
    """The data that all kernels of a call share."""

    def __init__(self, call: Call, plan: Plan, arch: str, tiles: Tiles | None = None) -> None:
        """Take `tiles` instead of those of the table."""
        self.call = call
        self.cut = Cut.of(call, plan, arch, tiles)
        self.products, self.tiles, self.shape = self.cut
        self.sequences = Sequences(call)
        self.device = call.q.device
        self.key_heads = call.k.shape[1]
        self.none = torch.zeros(1, device=self.device)
        self.dense = _form(call, plan) == "dense"
        self.is_causal = call.options.is_causal
        self.longest = max(call.q.shape[2], call.k.shape[2])
        self.stores_chunks = self.is_causal and not self.dense
        whole = ceil_div(max(self.longest, 1), self.tiles.longest) * self.tiles.longest
        self.chunk = self.tiles.chunk if self.stores_chunks else whole
        self._budget = budget_of(plan)
        self.masked = call.key_mask is not None
        counts = torch.ones((), device=self.device) if call.key_mask is None else call.key_mask.float()
        self.counts = counts.expand(call.k.shape[:3]).contiguous()
        self.head_scale = self.none if call.head_scale is None else call.head_scale.float().contiguous()
        self.v = channels_last(call.v)
        self.fading: Fading | None = None
        if call.log_decay is not None:
            chunks = self.sequences.chunks(self.chunk, self.longest)
            self.fading = fading(call.log_decay, self.sequences, self.chunk, chunks)

    def spans(self) -> list[Stretch]:
        """Return spans of so many chunks that their states stay within the budget; one span if sequences are packed."""
        queries, keys = self.call.q.shape[2], self.call.k.shape[2]
        at_once = max(self.longest, 1)
        if self.stores_chunks and not self.sequences.packed:
            per_chunk = self.cut.slot_bytes * self.key_heads * self.sequences.count
            at_once = max(1, self._budget // max(1, per_chunk)) * self.chunk
        found = []
        for start in range(0, max(self.longest, 1), at_once):
            own = [max(0, min(n - start, at_once)) for n in (queries, keys)]
            chunks = self.sequences.chunks(self.chunk, max(own)) if self.is_causal else self.sequences.whole()
            found.append(Stretch(start, own[0], own[1], start // self.chunk, chunks))
        return found

    def of_chunk(self, span: Stretch) -> Tensor:
        """Return the factor on a state over each chunk, (slots, Hkv)."""
        if self.fading is None:
            return self.none
        chunks = 0 if self.sequences.packed else span.chunks.per_sequence
        return self.fading.span(self.sequences.count, span.first_chunk, chunks)


def _form(call: Call, plan: Plan) -> str:
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


def channels_last(x: Tensor) -> Tensor:
    """Return x with contiguous channels, as the kernels load them. Copy it if needed."""
    return x if x.stride(3) == 1 or x.shape[3] == 1 else x.contiguous()
