"""One attention call in the canonical layout that every backend gets: shapes, dtypes and the buffers it fills."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fastmax.features import feature_count


def accumulation_dtype(*dtypes: torch.dtype) -> torch.dtype:
    """What sums are taken in: fp64 if any input is, else fp32."""
    return torch.float64 if torch.float64 in dtypes else torch.float32


@dataclass(slots=True)  # not frozen, which would take longer to make than all the checks; yet nobody changes one
class Problem:
    """Raw (not yet standardized) tensors of any strides and floating dtypes, and what to do with them.

    Hq is a multiple of Hkv; query head h reads key head h // (Hq / Hkv). A packed batch (`cu_seqlens`) has B = 1.
    """

    q: Tensor  # (B, Hq, Nq, D)
    k: Tensor  # (B, Hkv, Nk, D)
    v: Tensor  # (B, Hkv, Nk, Dv)
    order: int
    is_causal: bool  # query i sees the keys j <= i, and all of state_in
    normalize: bool
    scale: float
    return_state: bool
    out_dtype: torch.dtype
    dropout_p: float = 0.0
    dropout_mode: str = "quadratic"
    head_scale: Tensor | None = None  # (Hq,), multiplies `scale`
    key_mask: Tensor | None = None  # (B, 1 or Hkv, Nk), bool, True where the key counts
    cu_seqlens_q: Tensor | None = None  # (sequences + 1,), integers from 0 up to Nq
    cu_seqlens_k: Tensor | None = None
    state_in: Tensor | None = None  # (B or sequences, Hkv, F, Dv + 1)
    dropout_seed: Tensor | None = None  # (), int64: there is dropout if and only if there is a seed

    @property
    def head_dim(self) -> int:
        return self.q.shape[-1]

    @property
    def value_dim(self) -> int:
        return self.v.shape[-1]

    @property
    def groups(self) -> int:
        """Query heads per key head."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def features(self) -> int:
        return feature_count(self.head_dim, self.order)

    @property
    def dtype(self) -> torch.dtype:
        """Of all arithmetic, of g and of the states."""
        return accumulation_dtype(self.q.dtype, self.k.dtype, self.v.dtype)

    @property
    def state_shape(self) -> tuple[int, int, int, int]:
        states = self.k.shape[0] if self.cu_seqlens_k is None else self.cu_seqlens_k.shape[0] - 1
        return states, self.k.shape[1], self.features, self.value_dim + 1

    def new_outputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Uninitialized o, g and state_out (of size 0 unless asked for).

        o has heads inside tokens in memory where q has, so that the transpose back to (B, N, H * Dv) is free.
        """
        batch, heads, tokens, _ = self.q.shape
        if self.q.stride(1) < self.q.stride(2):
            o = self.q.new_empty(batch, tokens, heads, self.value_dim, dtype=self.out_dtype).transpose(1, 2)
        else:
            o = self.q.new_empty(batch, heads, tokens, self.value_dim, dtype=self.out_dtype)
        g = self.q.new_empty(batch, heads, tokens, dtype=self.dtype)
        return o, g, self.q.new_empty(self.state_shape if self.return_state else (0,), dtype=self.dtype)


class OutputGrads(NamedTuple):
    """What arrives in the backward pass: the gradients of o, g and state_out, each None where it is zero."""

    o: Tensor | None
    g: Tensor | None
    state: Tensor | None


class InputGrads(NamedTuple):
    """What leaves it. `head_scale` and `state` have size 0 where the problem has no such input."""

    q: Tensor
    k: Tensor
    v: Tensor
    head_scale: Tensor
    state: Tensor

    @staticmethod
    def empty(p: Problem) -> "InputGrads":
        """Uninitialized buffers of the inputs' own dtypes and memory layouts."""
        return InputGrads(
            torch.empty_like(p.q),
            torch.empty_like(p.k),
            torch.empty_like(p.v),
            p.q.new_empty(0) if p.head_scale is None else torch.empty_like(p.head_scale),
            p.q.new_empty(0) if p.state_in is None else torch.empty_like(p.state_in),
        )
