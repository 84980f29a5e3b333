"""A call of which only the data is left to say: its shapes, strides and options are packed."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fastmax.backends.native import abi
from fastmax.backends.native.packed_call import PackedCall, in_rows
from fastmax.call import Call, Options


@dataclass(frozen=True)
class Prepared:
    """Fields without their addresses."""

    options: Options
    library: abi.Library
    numbers: tuple[float, ...]  # in front of the tensors
    q: abi.Fields
    k: abi.Fields
    v: abi.Fields
    o: abi.Fields
    g: abi.Fields
    shape: tuple[int, ...]
    heads_inside: bool  # in memory, o is (B, N, H, Dv)
    g_shape: tuple[int, ...]
    g_dtype: torch.dtype

    @staticmethod
    def of(options: Options, packed: PackedCall, o: Tensor, g: Tensor) -> "Prepared":
        library = abi.load()
        assert not isinstance(library, str), library
        q, k, v, o_, g_ = (packed.tensors[i + 1 : i + 5] for i in range(0, 25, 5))
        heads_inside = o.stride(1) < o.stride(2)
        shape = tuple(o.transpose(1, 2).shape if heads_inside else o.shape)
        return Prepared(
            options, library, packed.numbers, q, k, v, o_, g_, shape, heads_inside, tuple(g.shape), g.dtype
        )  # fmt: skip

    def call(self, q: Tensor, k: Tensor, v: Tensor) -> Call:
        return Call(q, k, v, options=self.options)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self._forward(q, k, v, 0)

    def forward_for_grads(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """o and g."""
        g = torch.empty(self.g_shape, dtype=self.g_dtype, device="cpu")
        return self._forward(q, k, v, g.data_ptr()), g

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, g: int) -> Tensor:
        o = torch.empty(self.shape, dtype=self.options.out_dtype, device="cpu")
        if self.heads_inside:
            o = o.transpose(1, 2)
        self.library.huge_pages(o)
        packed = abi.CALL.pack(
            *self.numbers, q.data_ptr(), *self.q, k.data_ptr(), *self.k, v.data_ptr(), *self.v, o.data_ptr(), *self.o,
            g, *self.g, *abi.NO_TENSOR, *_NO_GRADS, *_NOTHING_ELSE,
        )  # fmt: skip
        self.library.run("forward", packed, None)
        return o

    def backward(
        self, q: Tensor, k: Tensor, v: Tensor, o: Tensor, g: Tensor, do: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        if not in_rows(do.stride(), do):
            do = do.contiguous()
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        for x in (dq, dk, dv):
            self.library.huge_pages(x)
        packed = abi.CALL.pack(
            *self.numbers, q.data_ptr(), *self.q, k.data_ptr(), *self.k, v.data_ptr(), *self.v, o.data_ptr(), *self.o,
            g.data_ptr(), *self.g, *abi.NO_TENSOR, *abi.tensor(do), *abi.NO_TENSOR, *abi.tensor(dq), *abi.tensor(dk),
            *abi.tensor(dv), *abi.NO_TENSOR, *_NOTHING_ELSE,
        )  # fmt: skip
        self.library.run("backward", packed, None)
        return dq, dk, dv


_NO_GRADS = abi.NO_TENSOR * 6
_NOTHING_ELSE = (0,) * 12  # mask, lengths, scales and states
