"""The tables of tiles and chunks in which programs find their tokens, made on the device without a synchronization."""

from typing import NamedTuple

import torch
from torch import Tensor

from fastmax.call import Call


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


class Slots(NamedTuple):
    """Pieces of sequences, numbered sequence by sequence: piece c of sequence i is slot first[i] + c."""

    first: Tensor  # (sequences + 1,), int32
    owner: Tensor  # sequence of each slot, int32; -1 where the upper bound on their number was not reached
    number: int
    per_sequence: int  # 0 if sequences differ


class Sequences:
    """The sequences of a call: rows of a batch, or packed ones whose lengths only the device knows."""

    def __init__(self, call: Call) -> None:
        self.packed = call.cu_seqlens_q is not None
        self.device = call.q.device
        none = torch.zeros(1, dtype=torch.int32, device=self.device)
        self.queries, self.keys = call.q.shape[2], call.k.shape[2]
        self.count = call.state_shape[0]
        self.cu_q, self.cu_k = none, none
        self.lengths_q = self.lengths_k = none
        if call.cu_seqlens_q is not None and call.cu_seqlens_k is not None:
            self.cu_q, self.cu_k = (x.to(torch.int32) for x in (call.cu_seqlens_q, call.cu_seqlens_k))
            self.lengths_q, self.lengths_k = self.cu_q.diff(), self.cu_k.diff()

    def tiles(self, size: int, length: int, *, of_queries: bool) -> Slots:
        """Return tiles of `size` rows. `length` is that of a span, or of all sequences together if they are packed."""
        return self._slots(size, length, self.lengths_q if of_queries else self.lengths_k)

    def chunks(self, size: int, length: int) -> Slots:
        """Return chunks of queries or keys, of whichever there are more."""
        both = torch.maximum(self.lengths_q, self.lengths_k)
        return self._slots(size, self.queries + self.keys if self.packed else length, both)

    def whole(self) -> Slots:
        """Return one chunk per sequence."""
        first = torch.arange(self.count + 1, dtype=torch.int32, device=self.device)
        return Slots(first, first, self.count, 1)

    def _slots(self, size: int, length: int, lengths: Tensor) -> Slots:
        if not self.packed:
            per_sequence = ceil_div(length, size)
            first = torch.arange(self.count + 1, dtype=torch.int32, device=self.device) * per_sequence
            return Slots(first, first, self.count * per_sequence, per_sequence)
        first = torch.zeros(self.count + 1, dtype=torch.int32, device=self.device)
        first[1:] = ((lengths + (size - 1)) // size).cumsum(0)
        count = ceil_div(length, size) + self.count
        slots = torch.arange(count, dtype=torch.int32, device=self.device)
        owner = torch.searchsorted(first[1:].contiguous(), slots, right=True)
        return Slots(first, torch.where(slots < first[-1], owner, -1).to(torch.int32), count, 0)
