"""A step of decoding by kernels, on the buffers of a state; `fastmax.state.decode.prepare_step` defines it."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from fastmax.backends.triton import checked, device
from fastmax.backends.triton.slots import ceil_div
from fastmax.backends.triton.tiles import padded
from fastmax.core import EPS
from fastmax.decay import STRONGEST

MAX_DIM = 128

CHANNELS = 2
"""A program of `step` has the rows of twice as many channels of the sum: a head has 17 (D = 64) or 33 of them (D = 128)."""

MAX_ACCUMULATED = 4096
"""Numbers that a program adds up: what registers hold. With 8192, `step` spilled 36 bytes on sm_90 at D = 64."""


def can_step(where: torch.device, order: int, head_dim: int, value_dim: int) -> bool:
    """Return True on the CPU and on GPUs that the doctor has passed: a state cannot name a backend."""
    if device.missing(where) is not None or order > 2 or max(head_dim, value_dim) > MAX_DIM:
        return False
    return where.type == "cpu" or checked.is_checked(where)


class PreparedStep:
    """For tokens like these. Decays are not looked at: that would be a wait for the device."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,  # noqa: ARG002  (the contract has it)
        v: Tensor,
        total: Tensor | None,
        recent_k: Tensor,
        recent_u: Tensor,
        recent_decay: Tensor | None,
        total_decay: Tensor | None,
        log_decay: Tensor | None,  # noqa: ARG002
        *,
        order: int,
        scale: float,
        normalize: str,
    ) -> None:
        self._total_decay = total_decay
        self._total, self._keys, self._values, self._decays = total, recent_k, recent_u, recent_decay
        batch, query_heads, _, dim = q.shape
        self._scale = torch.full((query_heads,), scale, dtype=recent_k.dtype, device=q.device)
        self._heads, self._value_dim, self._dtype, self._device = v.shape[1], v.shape[3], v.dtype, q.device
        self._batch, self._query_heads = batch, query_heads
        groups = query_heads // max(1, self._heads)
        self._none = torch.zeros(1, device=q.device)
        self._columns = min(16, padded(self._value_dim))
        self._shape = {"D": dim, "DP": padded(dim), "ORDER": order, "DECAY": recent_decay is not None}
        grouped, width = 1 << max(0, groups - 1).bit_length(), padded(self._value_dim)
        self._read = min(width, max(16, MAX_ACCUMULATED // (grouped * padded(dim))))
        of_sum = 0 if total is None else ceil_div((dim + 1) // 2, CHANNELS) if order == 2 else 1
        self._parts = 1 + of_sum
        heads = self._batch * self._heads
        self._f, self._g = (
            torch.empty(heads, self._parts, grouped, *n, dtype=recent_k.dtype, device=q.device) for n in ((width,), ())
        )
        self._queries = {"DV": self._value_dim, "DVP": width, "G": groups, "GP": grouped}
        self._more = {
            "BV": self._read,
            "CHANNELS": CHANNELS,
            "R": padded(recent_k.shape[2]),
            "BR": 16,
            "NORM": normalize,
            "EPS": EPS,
            "STRONGEST": STRONGEST[recent_k.dtype],
        }

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        head_scale: Tensor | None,
        key_mask: Tensor | None,
        log_decay: Tensor | None,
        recent_count: int,
        fold: int,
    ) -> Tensor:
        from fastmax.backends.triton.kernels.step import combine, step

        if fold:
            recent_count = self._folded(recent_count, fold)
        q, k, v = (x if x.stride(3) == 1 or x.shape[3] == 1 else x.contiguous() for x in (q, k, v))
        out = torch.empty(self._batch, self._query_heads, 1, self._value_dim, dtype=self._dtype, device=self._device)
        none = self._none
        features = 0 if self._total is None else self._total.shape[2]
        if out.numel():
            with self._on():
                step[(self._batch * self._heads, self._parts, ceil_div(self._value_dim, self._read))](
                    q, k, v, self._scale if head_scale is None else self._scale * head_scale,
                    none if key_mask is None else key_mask,
                    none if log_decay is None else log_decay, none if self._total is None else self._total,
                    self._keys, self._values, none if self._decays is None else self._decays, self._f, self._g,
                    recent_count, self._keys.shape[2], features, self._heads,
                    *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], 0 if key_mask is None else key_mask.stride(0),
                    *((0, 0) if log_decay is None else log_decay.stride()[:2]),
                    **self._shape, **self._queries, **self._more, MASKED=key_mask is not None,
                )  # fmt: skip
                combine[(self._batch * self._query_heads,)](
                    self._f, self._g, out, self._parts, **self._queries, P=1 << (self._parts - 1).bit_length()
                )
        return out

    def _folded(self, recent_count: int, fold: int) -> int:
        """Fold the oldest tokens into the sum, move the others up, and return how many are left."""
        from fastmax.backends.triton.kernels.fold import fold as kernel

        assert self._total is not None
        parts = self._shape["D"] + 1 if self._shape["ORDER"] == 2 else 1
        columns = self._value_dim + 1
        heads = self._batch * self._heads
        if heads:
            with self._on():
                kernel[(heads * parts, ceil_div(columns, self._columns))](
                    self._total, self._keys, self._values, self._none if self._decays is None else self._decays,
                    fold, self._keys.shape[2], self._total.shape[2], COLUMNS=columns, BV=self._columns, **self._shape,
                )  # fmt: skip
        if self._total_decay is not None and self._decays is not None:
            self._total_decay.add_(self._decays[:, :, :fold].sum(2, dtype=self._total_decay.dtype))
        left = recent_count - fold
        for x in (self._keys, self._values, self._decays):
            if x is not None:
                x.narrow(2, 0, left).copy_(x.narrow(2, fold, left).clone())
        return left

    def _on(self) -> AbstractContextManager[Any]:
        return torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()


prepare_step = PreparedStep
