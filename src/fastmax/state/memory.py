"""The memory of a state: a sum over the older tokens, the youngest beside it, and what queries get from both."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from fastmax._torch_private import unwatched
from fastmax.api import fastmax_attention
from fastmax.core import standardize
from fastmax.features import feature_count
from fastmax.state import decode
from fastmax.state.recent import Recent, capacity

_FEW = 1 << 18
"""Features of so many numbers per head are formed at once, without the op: 122 queries at D = 64 and order 2."""


class Memory:
    """Tokens go in by `_extended`, or by `_step_in_place` where nobody watches; queries `_see` them."""

    head_dim: int
    order: int
    scale: float | Tensor
    normalize: bool
    _sum: Tensor | None  # over the older keys, never written to; None while there are none
    _recent: Recent
    _room: tuple[Tensor, Tensor] | None  # buffers that `_recent` is the beginning of, and that nobody else sees

    @property
    def batch(self) -> int:
        return self._recent.keys.shape[0]

    @property
    def num_kv_heads(self) -> int:
        return self._recent.keys.shape[1]

    @property
    def value_dim(self) -> int:
        return self._recent.values.shape[3] - 1

    @property
    def dtype(self) -> torch.dtype:
        return self._recent.keys.dtype

    @property
    def device(self) -> torch.device:
        return self._recent.keys.device

    @property
    def _capacity(self) -> int:
        return capacity(self.head_dim, self.value_dim, self.order)

    def _tokens(self, key: Tensor, value: Tensor, key_mask: Tensor | None) -> Recent:
        return Recent.of(key, value, key_mask, dtype=self.dtype, normalize=self.normalize)

    def _extended(self, new: Recent, query: Tensor | None = None) -> tuple[Tensor | None, Recent, Tensor | None]:
        """The sum and the recent tokens after these. What is too much for the recent ones goes to the sum, oldest first.

        Of the queries of these tokens, if given, some may go with them: what they get comes third.
        """
        before = self._recent.length
        recent = self._recent.then(new)
        if recent.length <= self._capacity:
            return self._sum, recent, None
        # Half of the room stays free, so that the sum is written only once in so many steps.
        older, recent = recent.split(recent.length - self._capacity // 2)
        recent = recent.copy()  # a view would keep the older ones alive
        answered = older.length - before
        if query is None or answered <= 0:
            return self._folded(older), recent, None
        o, total = self._attend(query[:, :, :answered], self._sum, older, before, return_state=True)
        return total, recent, o

    def _folded(self, recent: Recent) -> Tensor:
        """The sum, and these tokens in it."""
        nobody = recent.keys.new_empty(self.batch, self.num_kv_heads, 0, self.head_dim)
        total: Tensor = self._attend(nobody, self._sum, recent, 0, scale=1.0, return_state=True)[1]
        return total

    def _see(self, query: Tensor, total: Tensor | None, recent: Recent, first: int | None) -> Tensor:
        """Queries read the sum and see recent tokens: query n those up to `first` + n, or all of them if that is None."""
        few = query.shape[2] * feature_count(self.head_dim, self.order) <= _FEW and self.order <= 2
        if total is not None and few:
            lowered = self._autocast_dtype() is not None
            with torch.autocast(query.device.type, enabled=False) if lowered else nullcontext():
                query = decode.scaled_query(query, self.scale, self.dtype, self.normalize)
                return decode.attend(query, total, recent, order=self.order, first=first)
        if first is None and total is None:
            return self._attend(query, total, recent, None)[0]
        # Causal, so that backends see the recent tokens densely even where there is a sum.
        return self._attend(query, total, recent, recent.length if first is None else first)[0]

    def _attend(
        self,
        query: Tensor,
        total: Tensor | None,
        recent: Recent,
        first: int | None,
        *,
        scale: float | Tensor | None = None,
        return_state: bool = False,
    ) -> tuple[Tensor, Any]:
        """`_see` by the op, for any number of queries. Query n is put at position `first` + n, after others of zeros."""
        query = standardize(query.to(self.dtype)) if self.normalize else query.to(self.dtype)
        result = fastmax_attention(
            pad(query, (0, 0, first, 0)) if first else query,
            recent.keys,
            recent.values[..., :-1],
            recent.attn_mask,
            is_causal=first is not None,
            order=self.order,
            scale=self.scale if scale is None else scale,
            normalize=False,
            enable_gqa=True,
            initial_state=total,
            return_state=return_state,
        )
        o, total = result if return_state else (result, None)
        return (o[:, :, first:] if first else o), total

    def _shown(self, *others: Tensor) -> Recent:
        """The recent tokens, for a call with these tensors.

        If somebody watches it, they may be kept, by a graph for example: then no step will write beside them.
        """
        if not self._unwatched(*others):
            self._room = None
        return self._recent

    def _unwatched(self, *others: Tensor) -> bool:
        own = (self._recent.keys, self._recent.values, self._sum, self.scale)
        return unwatched(*others, *(x for x in own if isinstance(x, Tensor)))

    def _may_step_in_place(self, query: Tensor, key: Tensor, value: Tensor, key_mask: Tensor | None) -> bool:
        if not self._unwatched(query, key, value, *(() if key_mask is None else (key_mask,))):
            return False
        return not torch.is_autocast_enabled(query.device.type)

    def _step_in_place(self, query: Tensor, key: Tensor, value: Tensor, key_mask: Tensor | None) -> Tensor:
        """One token, written beside the others where there is room."""
        keys, values = self._with_room()
        count = self._recent.length
        o = decode.best_step(query.device, self.order, self.head_dim, self.value_dim)(
            query.squeeze(2),
            key.squeeze(2),
            value.squeeze(2),
            self._sum,
            keys,
            values,
            count,
            order=self.order,
            scale=1.0 if isinstance(self.scale, Tensor) else self.scale,
            head_scale=self.scale.expand(query.shape[1]) if isinstance(self.scale, Tensor) else None,
            normalize=self.normalize,
            key_mask=key_mask,
        )
        if not keys.is_inference():  # those have no version
            torch.autograd.graph.increment_version((keys, values))
        masked = self._recent.masked or key_mask is not None
        self._recent = Recent(keys[:, :, : count + 1], values[:, :, : count + 1], masked)
        return o.unsqueeze(2)

    def _with_room(self) -> tuple[Tensor, Tensor]:
        """Buffers that begin with the recent tokens and have room for one more."""
        size, recent = self._capacity, self._recent
        if recent.length == size:
            older, recent = recent.split(size + 1 - size // 2)
            self._sum = self._folded(older)
            self._room = None
        # what inference mode made is not to be written to outside of it
        usable = self._room is not None and (not self._room[0].is_inference() or torch.is_inference_mode_enabled())
        if self._room is None or not usable:
            self._room = _room(recent.keys, size), _room(recent.values, size)
            self._recent = recent
        return self._room

    def _autocast_dtype(self) -> torch.dtype | None:
        """What autocast lowers outputs to, as those of `fastmax_attention`, but not those of fp64."""
        device = self.device.type
        known = device == "cpu" or torch.amp.is_autocast_available(device)
        lowered = self.dtype == torch.float32 and known and torch.is_autocast_enabled(device)
        return torch.get_autocast_dtype(device) if lowered else None

    def _zeros(self, rows: int | None = None) -> Tensor:
        rows = feature_count(self.head_dim, self.order) if rows is None else rows
        return self._recent.keys.new_zeros(self.batch, self.num_kv_heads, rows, self.value_dim + 1)


def _room(x: Tensor, size: int) -> Tensor:
    """x, and room for more tokens after it."""
    buffer = x.new_empty(*x.shape[:2], size, x.shape[3])
    buffer[:, :, : x.shape[2]] = x
    return buffer
