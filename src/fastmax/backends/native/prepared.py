"""A call of which only the data is left to say: shapes, strides and options are packed, and no gradient will be asked for."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fastmax.backends.native import abi


@dataclass(frozen=True)
class Prepared:
    numbers: tuple[float, ...]  # the fields in front of the tensors
    q: abi.Fields  # each without its address
    k: abi.Fields
    v: abi.Fields
    o: abi.Fields
    shape: tuple[int, ...]
    heads_inside: bool  # in memory, o is (B, N, H, Dv)
    dtype: torch.dtype

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        o = torch.empty(self.shape, dtype=self.dtype, device="cpu")
        if self.heads_inside:
            o = o.transpose(1, 2)
        library = abi.load()
        assert not isinstance(library, str), library
        library.huge_pages(o)
        call = abi.CALL.pack(
            *self.numbers, q.data_ptr(), *self.q, k.data_ptr(), *self.k, v.data_ptr(), *self.v, o.data_ptr(), *self.o,
            *_NOTHING_ELSE,
        )  # fmt: skip
        library.run("forward", call, None)
        return o


_NOTHING_ELSE = (0,) * (5 + 25 + 12)  # g, the gradients, and the pointers behind them
