"""The contents of a state as an immutable value: a sum over the older tokens, and the youngest beside it."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from fastmax._torch_private import AUTOGRAD, find_watcher
from fastmax.api import fastmax_attention
from fastmax.call import autocast_dtype, normalization
from fastmax.core import normalized
from fastmax.decay import bounded, check_decays, wide
from fastmax.features import feature_count
from fastmax.state import decode
from fastmax.state.recent import Recent, capacity

MAX_FEATURES_AT_ONCE = 1 << 18
"""Features per head that queries may form without the op: those of 122 queries at D = 64 and order 2."""


class Weighting(NamedTuple):
    """The options that turn a query and a key into a weight."""

    order: int
    scale: float | Tensor
    normalize: bool | str

    @property
    def normalization(self) -> str:
        return normalization(self.normalize)


class Contents(NamedTuple):
    """All that attention needs of the keys so far. No method writes to its tensors."""

    # (B, Hkv, F, Dv + 1), the sum over the older keys, faded up to the youngest of them; None if empty
    total: Tensor | None
    total_decay: Tensor | None  # (B, Hkv), of dtype `wide`: the total of their log_decay; None for zeros
    recent: Recent
    tokens: Tensor  # (B,), int64: how many keys there are, masked ones not counted

    @property
    def head_dim(self) -> int:
        return self.recent.keys.shape[3]

    @property
    def value_dim(self) -> int:
        return self.recent.values.shape[3] - 1

    @property
    def dtype(self) -> torch.dtype:
        return self.recent.keys.dtype

    @property
    def device(self) -> torch.device:
        return self.recent.keys.device

    @property
    def tensors(self) -> list[Tensor]:
        """Return the tensors that attention reads."""
        recent = self.recent
        return [x for x in (recent.keys, recent.values, recent.decays, self.total) if x is not None]

    @property
    def decays(self) -> bool | None:
        """Return True if the tokens have a log_decay, False if they have none, None if there are no tokens yet."""
        if self.total is None and not self.recent.length:
            return None
        return self.total_decay is not None or self.recent.decays is not None

    @property
    def log_decay(self) -> Tensor:
        """Return the total of log_decay over all tokens, (B, Hkv), `fastmax.decay.bounded`."""
        total = _total(self.recent, self.total_decay)
        if total is None:
            return self.tokens.new_zeros(self.recent.keys.shape[:2], dtype=wide(self.device))
        return total.clone() if total is self.total_decay else total

    def map(self, f: Callable[[Tensor], Tensor]) -> "Contents":
        """Return the contents with `f` applied to every tensor."""
        total, total_decay = (None if x is None else f(x) for x in (self.total, self.total_decay))
        return Contents(total, total_decay, self.recent.map(f), f(self.tokens))

    def new_tokens(
        self, key: Tensor, value: Tensor, key_mask: Tensor | None, log_decay: Tensor | None, weighting: Weighting
    ) -> Recent:
        """Return checked tokens in the dtype of the sums, their decays 0 where a key does not count."""
        if log_decay is not None:
            log_decay = log_decay.to(self.dtype).expand(key.shape[:3])
            if key_mask is not None:
                log_decay = torch.where(key_mask.unsqueeze(1), log_decay, 0)
            if find_watcher((log_decay,)) <= AUTOGRAD:
                check_decays(log_decay)
            log_decay = bounded(log_decay).contiguous()
        return Recent.of(key, value, key_mask, log_decay, dtype=self.dtype, normalize=weighting.normalization)

    def extended(
        self, new: Recent, count: Tensor | int, weighting: Weighting, query: Tensor | None = None
    ) -> "tuple[Contents, Tensor | None]":
        """Return the contents after new tokens, `count` of which count. The oldest recent tokens join the sum as needed.

        Args:
            new: the tokens.
            count: a number, or one per batch element, (B,).
            weighting: the options of the state.
            query: the queries of the new tokens. Those of tokens that join the sum are answered on the way.

        Returns:
            The contents, and the outputs of the first queries, None if there are none.
        """
        tokens = self.tokens + count
        if not new.length:
            return self._replace(tokens=tokens), None
        before, most = self.recent.length, capacity(self.head_dim, self.value_dim, weighting.order)
        recent = self.recent.then(new)
        if recent.length <= most:
            return self._replace(recent=recent, tokens=tokens), None
        # Half of the room stays free, so that the sum is written only once in so many steps.
        older, recent = recent.split(recent.length - most // 2)
        # a view would keep the older ones alive
        recent = recent.map(lambda x: x.clone(memory_format=torch.contiguous_format))
        decay = _total(older, self.total_decay)
        answered = older.length - before
        if query is None or answered <= 0:
            return Contents(self._folded(older, weighting.order), decay, recent, tokens), None
        query = query[:, :, :answered]
        o, total = _attend(query, self.total, older, before, weighting, return_state=True)
        return Contents(total, decay, recent, tokens), o

    def with_oldest_in_sum(self, count: int, order: int) -> "Contents":
        """Return the contents with the `count` oldest recent tokens in the sum."""
        older, recent = self.recent.split(count)
        return Contents(self._folded(older, order), _total(older, self.total_decay), recent, self.tokens)

    def whole_sum(self, order: int) -> Tensor:
        """Return the sum over all tokens, (B, Hkv, F, Dv + 1), a new tensor."""
        if self.recent.length:
            return self._folded(self.recent, order)
        if self.total is not None:
            return self.total.clone()
        return self.recent.keys.new_zeros(
            *self.recent.keys.shape[:2], feature_count(self.head_dim, order), self.value_dim + 1
        )

    def added(self, younger: "Contents", order: int) -> "Contents":
        """Return the contents after the keys of both. The tokens of `younger` fade these."""
        whole = self
        if younger.total is not None:
            total, decay = self.total, self.total_decay
            if self.decays or younger.decays:
                whole = self.with_oldest_in_sum(self.recent.length, order)
                total, decay = whole.total, whole.total_decay
                if younger.total_decay is not None:
                    assert total is not None
                    total = total * younger.total_decay.exp().to(self.dtype)[..., None, None]
                    decay = younger.total_decay if decay is None else decay + younger.total_decay
            total = younger.total.clone() if total is None else total + younger.total
            whole = whole._replace(total=total, total_decay=decay)
        return whole.extended(younger.recent, younger.tokens, _for_keys(order))[0]

    def attend(self, query: Tensor, first: int | None, weighting: Weighting) -> Tensor:
        """Return what queries get: query n from the sum and the recent tokens up to `first` + n, all of them if that is None.

        (B, Hq, N, D) -> (B, Hq, N, Dv) in the dtype of the sums.
        """
        recent, order = self.recent, weighting.order
        is_short = query.shape[2] * feature_count(self.head_dim, order) <= MAX_FEATURES_AT_ONCE
        if self.total is not None and is_short and order <= 2:
            with self._full_precision():
                query = decode.scaled_query(query, weighting.scale, self.dtype, weighting.normalization)
                return decode.attend(query, self.total, recent, order=order, first=first)
        if first is None and recent.decays is not None:
            recent, first = recent.then_hidden(query.shape[2]), recent.length
        if first is None and self.total is not None:
            first = recent.length  # causal, so that backends see the recent tokens densely even where there is a sum
        return _attend(query, self.total, recent, first, weighting)[0]

    def autocast_dtype(self) -> torch.dtype | None:
        """Return the dtype that autocast lowers outputs to, as in `fastmax_attention`, or None."""
        return autocast_dtype(self.device.type, self.dtype)

    def _full_precision(self) -> AbstractContextManager[None]:
        lowered = self.autocast_dtype() is not None
        return torch.autocast(self.device.type, enabled=False) if lowered else nullcontext()

    def _folded(self, recent: Recent, order: int) -> Tensor:
        """Return the sum with these tokens in it."""
        no_query = recent.keys.new_empty(*recent.keys.shape[:2], 0, self.head_dim)
        total: Tensor = _attend(no_query, self.total, recent, 0, _for_keys(order), return_state=True)[1]
        return total


def _for_keys(order: int) -> Weighting:
    """Return the options of normalized keys without queries."""
    return Weighting(order, 1.0, False)


def _total(recent: Recent, before: Tensor | None) -> Tensor | None:
    """Return the total of log_decay of these tokens and those before them."""
    if recent.decays is None:
        return before
    total = recent.decays.to(wide(recent.decays.device)).sum(2)
    return total if before is None else before + total


def _attend(
    query: Tensor,
    total: Tensor | None,
    recent: Recent,
    first: int | None,
    weighting: Weighting,
    *,
    return_state: bool = False,
) -> tuple[Tensor, Any]:
    """Run the op for queries at the positions `first` + n. Positions before them are filled with zeros."""
    query = normalized(query.to(recent.keys.dtype), weighting.normalization)
    attend: Any = fastmax_attention  # its overloads take return_state as a literal only
    result = attend(
        pad(query, (0, 0, first, 0)) if first else query,
        recent.keys,
        recent.values[..., :-1],
        recent.attn_mask,
        is_causal=first is not None,
        order=weighting.order,
        scale=weighting.scale,
        normalize=False,
        log_decay=recent.decays,
        enable_gqa=True,
        initial_state=total,
        return_state=return_state,
    )
    o, total = result if return_state else (result, None)
    return (o[:, :, first:] if first else o), total
