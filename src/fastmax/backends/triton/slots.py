"""The pieces in which programs find their tokens: of rows of a batch, or of packed sequences, whose ends the device knows.

No table is made: piece p of a batch is piece p % per_sequence of sequence p // per_sequence; those of packed sequence i are
from cu[i] // size + i on, and a program searches for its own (kernels/common.py).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fastmax.call import Call


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


class Pieces(NamedTuple):
    """Pieces of all sequences together."""

    number: int  # if packed an upper bound
    per_sequence: int  # if packed 0: it differs


class Sequences:
    """The sequences of a call."""

    def __init__(self, call: Call) -> None:
        self.packed = call.cu_seqlens_q is not None
        self.queries, self.keys = call.q.shape[2], call.k.shape[2]
        self.count = call.state_shape[0]
        if call.cu_seqlens_q is not None and call.cu_seqlens_k is not None:
            self.cu_q, self.cu_k = (x.to(torch.int32).contiguous() for x in (call.cu_seqlens_q, call.cu_seqlens_k))
        else:
            self.cu_q = self.cu_k = torch.empty(1, dtype=torch.int32, device=call.q.device)

    def cu(self, *, of_queries: bool) -> Tensor:
        return self.cu_q if of_queries else self.cu_k

    def tiles(self, size: int, length: int) -> Pieces:
        """Return tiles of `size` rows. `length` is that of a span, or of all sequences together if they are packed."""
        return self._pieces(size, length, length)

    def chunks(self, size: int, length: int) -> Pieces:
        """Return chunks of queries or keys, of whichever there are more; those of packed sequences count both."""
        return self._pieces(size, length, self.queries + self.keys)

    def _pieces(self, size: int, length: int, packed: int) -> Pieces:
        if self.packed:
            return Pieces(packed // size + self.count, 0)
        per_sequence = ceil_div(length, size)
        return Pieces(self.count * per_sequence, per_sequence)
