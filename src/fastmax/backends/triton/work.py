"""One call on the device: its form, its tokens as the kernels take them, its pieces, and the spans that it is walked in."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fastmax.backends.triton.cut import MAX_TOTAL_PIECES, Cut, budget_of, form_of
from fastmax.backends.triton.slots import Pieces, Sequences, ceil_div
from fastmax.backends.triton.tiles import Tiles
from fastmax.call import Call
from fastmax.plan import Plan


@dataclass(frozen=True)
class Span:
    """Tokens of every sequence from `start` on, over which the states of chunks are held; all of them if packed."""

    start: int
    queries: int
    keys: int
    chunks: Pieces

    @property
    def longest(self) -> int:
        return max(self.queries, self.keys)


class Side(NamedTuple):
    """Queries or keys: raw tokens, the same normalized, where packed sequences begin."""

    raw: Tensor
    hat: Tensor
    cu: Tensor
    are_queries: bool

    def length(self, span: Span) -> int:
        return span.queries if self.are_queries else span.keys


class Fading(NamedTuple):
    """The decays inside a chunk, (B, Hkv, N): c_t is the sum of log_decay from the start of the chunk to token t."""

    high: Tensor  # c_t, the part of it that a float has
    low: Tensor  # and the rest
    until_here: Tensor  # exp(c_t): what a state fades by until t
    from_here: Tensor  # exp(c_last - c_t): what t fades by until the chunk ends


class Launch:
    """The data that all kernels of a call share."""

    def __init__(self, call: Call, plan: Plan, arch: str, tiles: Tiles | None = None) -> None:
        """Take `tiles` instead of those of the table."""
        self.call, self.arch = call, arch
        self.cut = Cut.of(call, plan, arch, tiles)
        self.products, self.tiles, self.shape = self.cut
        self.sequences = Sequences(call)
        self.device = call.q.device
        self.key_heads = call.k.shape[1]
        self.none = torch.empty(1, device=self.device)
        self.dense = form_of(call, plan) == "dense"
        self.is_causal = call.options.is_causal
        self.longest = max(call.q.shape[2], call.k.shape[2])
        self.stores_chunks = self.is_causal and not self.dense
        whole = ceil_div(max(self.longest, 1), self.tiles.longest) * self.tiles.longest
        self.chunk = self.tiles.chunk if self.stores_chunks else whole
        self.piece = self.chunk
        if not self.stores_chunks:
            self.piece = self.tiles.chunk * ceil_div(max(self.longest, 1), MAX_TOTAL_PIECES * self.tiles.chunk)
        self._budget = budget_of(plan, self.device)
        self.masked, self.decays = call.key_mask is not None, call.log_decay is not None
        self.head_scale = self.none if call.head_scale is None else call.head_scale.float().contiguous()

    def spans(self) -> list[Span]:
        """Return spans of so many chunks that their states stay within the budget; one span if sequences are packed."""
        queries, keys = self.call.q.shape[2], self.call.k.shape[2]
        at_once = max(self.longest, 1)
        if self.stores_chunks and not self.sequences.packed:
            per_chunk = self.cut.slot_bytes * self.key_heads * self.sequences.count
            at_once = max(1, self._budget // max(1, per_chunk)) * self.chunk
        found = []
        for start in range(0, max(self.longest, 1), at_once):
            own = [max(0, min(n - start, at_once)) for n in (queries, keys)]
            found.append(Span(start, own[0], own[1], self.sequences.chunks(self.piece, max(own))))
        return found


def channels_last(x: Tensor) -> Tensor:
    """Return x with contiguous channels, as the kernels load them. Copy it if needed."""
    return x if x.stride(3) == 1 or x.shape[3] == 1 else x.contiguous()
