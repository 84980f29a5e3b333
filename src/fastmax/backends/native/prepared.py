"""A call with its shapes, strides and options already packed, so that only addresses are left to fill in."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fastmax.backends.native import abi
from fastmax.backends.native.packed_call import PackedCall, in_rows
from fastmax.call import Call, Options
from fastmax.decay import check_decays, grads_within_bound, log_decay_grads


@dataclass(frozen=True)
class Prepared:
    """The packed fields of a call, without the addresses."""

    options: Options
    library: abi.Library
    numbers: tuple[float, ...]  # in front of the tensors
    q: abi.Fields
    k: abi.Fields
    v: abi.Fields
    o: abi.Fields
    g: abi.Fields
    log_decay: abi.Fields  # zeros where there is none
    shape: tuple[int, ...]
    heads_inside: bool  # in memory, o is (B, N, H, Dv)
    g_shape: tuple[int, ...]
    g_dtype: torch.dtype
    total_shape: tuple[int, ...] | None  # of the sum over keys, where the backward pass is spared it

    @staticmethod
    def of(call: Call, packed: PackedCall, o: Tensor, g: Tensor) -> "Prepared":
        options = call.options
        library = abi.load()
        assert not isinstance(library, str), library
        fields = packed.tensors
        q, k, v, o_, g_, decay = fields[1:5], fields[6:10], fields[11:15], fields[16:20], fields[21:25], fields[26:30]
        heads_inside = o.stride(1) < o.stride(2)
        total_shape = call.state_shape if saves_sum(call, packed) else None
        shape = tuple(o.transpose(1, 2).shape if heads_inside else o.shape)
        return Prepared(
            options, library, packed.numbers, q, k, v, o_, g_, decay, shape, heads_inside, tuple(g.shape), g.dtype,
            total_shape,
        )  # fmt: skip

    def call(self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None) -> Call:
        return Call(q, k, v, log_decay=log_decay, options=self.options)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None) -> Tensor:
        return self._forward(q, k, v, log_decay, 0)

    def forward_for_grads(
        self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return o, g and the sum over keys, if the backward pass reads it."""
        g = torch.empty(self.g_shape, dtype=self.g_dtype, device="cpu")
        if self.total_shape is None:
            return self._forward(q, k, v, log_decay, g.data_ptr()), g, None
        total = torch.empty(self.total_shape, dtype=self.g_dtype, device="cpu")
        return self._forward(q, k, v, log_decay, g.data_ptr(), total.data_ptr()), g, total

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, g: int, total: int = 0) -> Tensor:
        o = torch.empty(self.shape, dtype=self.options.out_dtype, device="cpu")
        if self.heads_inside:
            o = o.transpose(1, 2)
        self.library.huge_pages(o)
        packed = abi.CALL.pack(
            *self.numbers, q.data_ptr(), *self.q, k.data_ptr(), *self.k, v.data_ptr(), *self.v, o.data_ptr(), *self.o,
            g, *self.g, 0 if log_decay is None else log_decay.data_ptr(), *self.log_decay, *_NO_GRADS, *_BEFORE_STATES,
            0, total, *_BEHIND_STATES, total != 0,
        )  # fmt: skip
        try:
            self.library.run("forward", packed, None)
        except abi.DecayValueError:
            assert log_decay is not None
            check_decays(log_decay)
            raise
        return o

    def backward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_decay: Tensor | None,
        o: Tensor,
        g: Tensor,
        total: Tensor | None,
        do: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        if not in_rows(do.stride(), do):
            do = do.contiguous()
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        for x in (dq, dk, dv):
            self.library.huge_pages(x)
        dc = None if log_decay is None else torch.empty(k.shape[:3], dtype=self.g_dtype, device="cpu")
        packed = abi.CALL.pack(
            *self.numbers, q.data_ptr(), *self.q, k.data_ptr(), *self.k, v.data_ptr(), *self.v, o.data_ptr(), *self.o,
            g.data_ptr(), *self.g, 0 if log_decay is None else log_decay.data_ptr(), *self.log_decay,
            *abi.tensor(do), *abi.NO_TENSOR, *abi.tensor(dq), *abi.tensor(dk), *abi.tensor(dv), *abi.tensor(dc),
            *_BEFORE_STATES, 0 if total is None else total.data_ptr(), 0, *_BEHIND_STATES, total is not None,
        )  # fmt: skip
        self.library.run("backward", packed, None)
        if dc is None or log_decay is None:
            return dq, dk, dv, None
        return dq, dk, dv, grads_within_bound(log_decay_grads(dc).to(dc.dtype), log_decay)


_NO_GRADS = abi.NO_TENSOR * 6
_BEFORE_STATES = (0,) * 8  # mask, lengths and scales
_BEHIND_STATES = (0,) * 5  # gradients of states, and dropout


def saves_sum(call: Call, packed: PackedCall) -> bool:
    """Return True if forward keeps its sum over keys for backward, to save a fifth of that. It must be smaller than k."""
    if packed.uniform != abi.FORMS["factorized"] or call.options.is_causal:
        return False
    return call.features * (call.value_dim + 1) <= call.k.shape[2] * call.head_dim
