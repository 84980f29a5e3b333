"""A call with its shapes, strides and options already packed, so that only addresses are left to fill in."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fastmax.backends.native import abi
from fastmax.backends.native.packed_call import PackedCall, in_rows
from fastmax.call import Call, Options
from fastmax.decay import check_decays

_Q, _K, _V, _O, _G, _DECAY, _STATE_IN, _STATE_OUT, _IS_TOTAL = (
    abi.CALL.places[name] for name in ("q", "k", "v", "o", "g", "log_decay", "state_in", "state_out", "state_is_total")
)
_D_Q, _D_K, _D_V, _D_DECAY = (abi.CALL.places[name] for name in ("d_q", "d_k", "d_v", "d_decay"))


@dataclass(frozen=True)
class NativeCall:
    """The words of a call without other tensors than q, k, v and log_decay. The addresses in them are overwritten."""

    options: Options
    library: abi.Library
    words: abi.Words
    shape: tuple[int, ...]
    heads_inside: bool  # in memory, o is (B, N, H, Dv)
    g_shape: tuple[int, ...]
    g_dtype: torch.dtype
    total_shape: tuple[int, ...] | None  # of the sum over keys, where the backward pass is spared it

    @staticmethod
    def of(call: Call, packed: PackedCall, o: Tensor, g: Tensor) -> "NativeCall":
        library = abi.load()
        assert not isinstance(library, str), library
        heads_inside = o.stride(1) < o.stride(2)
        # the gradients have the layouts of their tensors; without an address they are absent
        like = {"d_q": call.q, "d_k": call.k, "d_v": call.v, "d_decay": call.log_decay}
        empty = {name: torch.empty_like(x, device="meta") for name, x in like.items() if x is not None}
        abi.CALL.put(packed.words, **empty)
        return NativeCall(
            options=call.options,
            library=library,
            words=packed.words,
            shape=tuple(o.transpose(1, 2).shape if heads_inside else o.shape),
            heads_inside=heads_inside,
            g_shape=tuple(g.shape),
            g_dtype=g.dtype,
            total_shape=call.state_shape if saves_sum(call, packed) else None,
        )

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
        words = self._with_addresses(q, k, v, log_decay, o, g)
        words[_STATE_OUT], words[_IS_TOTAL] = total, total != 0
        self.library.huge_pages(o)
        try:
            self.library.run("forward", words, None)
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
        if not in_rows(do):
            do = do.contiguous()
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        words = self._with_addresses(q, k, v, log_decay, o, g.data_ptr())
        abi.CALL.put(words, d_o=do)
        for x in (dq, dk, dv):
            self.library.huge_pages(x)
        words[_D_Q], words[_D_K], words[_D_V] = dq.data_ptr(), dk.data_ptr(), dv.data_ptr()
        d_decay = None if log_decay is None else torch.empty_like(log_decay)
        if d_decay is not None:
            words[_D_DECAY] = d_decay.data_ptr()
        if total is not None:
            words[_STATE_IN], words[_IS_TOTAL] = total.data_ptr(), True
        self.library.run("backward", words, None)
        return dq, dk, dv, d_decay

    def _with_addresses(
        self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, o: Tensor, g: int
    ) -> abi.Words:
        """Return a copy of the words for these tensors: calls on several threads may share this object."""
        words = self.words[:]
        words[_Q], words[_K], words[_V], words[_O], words[_G] = (
            q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), g,
        )  # fmt: skip
        if log_decay is not None:
            words[_DECAY] = log_decay.data_ptr()
        return words


def saves_sum(call: Call, packed: PackedCall) -> bool:
    """Return True if forward keeps its sum over keys for backward, to save a fifth of that. It must be smaller than k."""
    if packed.uniform != abi.FORMS["factorized"] or call.options.is_causal:
        return False
    return call.features * (call.value_dim + 1) <= call.k.shape[2] * call.head_dim
