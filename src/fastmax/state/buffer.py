"""The decoding buffer of a state: its contents with free room, where single steps write in place."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastmax._torch_private import has_no_watcher
from fastmax.state import decode
from fastmax.state.contents import Contents, Weighting
from fastmax.state.recent import capacity

FOLDED = 4
"""The number of tokens that join the sum at once. A step of 8 heads of 64 takes the kernel 43 us where it reads the 4.5 MB
of the sum, 97 us where four tokens join it; were it one in each step, 70 us. The registers hold no more than four values."""


class _Prepared(NamedTuple):
    """A step on the buffer, and what it depends on."""

    signature: Any
    step: decode.Step
    scale: float | Tensor


class DecodingBuffer:
    """The contents of a state while single steps decode. Only its state holds it, and no other object sees its tensors.

    No autograd, tracer or dispatch mode may be active in a step. `contents` returns views, for a use that ends before the
    next step; `snapshot` returns tensors that no later step writes to.
    """

    def __init__(self, contents: Contents, order: int, *, decaying: bool) -> None:
        recent = contents.recent._replace(decays=contents.recent.all_decays() if decaying else None)
        self._capacity = capacity(contents.head_dim, contents.value_dim, order)
        self._room, self._length = recent.with_room(self._capacity), recent.length
        self._total, self._total_decay = contents.total, contents.total_decay
        self._owns_total = False  # it is copied before the first write
        self._counted, self._uncounted = contents.tokens, 0
        self._order, self._is_inference = order, torch.is_inference_mode_enabled()
        self._prepared: _Prepared | None = None

    @property
    def tokens(self) -> Tensor:
        """Return how many keys there are, (B,), masked ones not counted."""
        return self._counted + self._uncounted if self._uncounted else self._counted

    @property
    def is_usable(self) -> bool:
        """Return False where inference mode was switched since: its tensors are not to be written to outside of it."""
        return self._is_inference == torch.is_inference_mode_enabled()

    @property
    def has_room(self) -> bool:
        """Return False if a token must join the sum before the next step, and steps cannot write the sum."""
        return self._length < self._capacity or (self._total is not None and self._order <= 2)

    def contents(self) -> Contents:
        """Return views of the contents."""
        recent = self._room.split(self._length)[0]
        return Contents(self._total, self._total_decay, recent, self.tokens)

    def snapshot(self) -> Contents:
        """Return the contents in tensors that no step writes to."""
        recent = self._room.map(Tensor.clone).split(self._length)[0]
        total, decay = self._total, self._total_decay
        if self._owns_total:
            total, decay = (None if x is None else x.clone() for x in (total, decay))
        return Contents(total, decay, recent, self.tokens)

    def step(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_mask: Tensor | None,
        log_decay: Tensor | None,
        weighting: Weighting,
    ) -> Tensor:
        """Add one checked token of each sequence and return the output of its query. Requires `has_room`."""
        if self._length == self._capacity and not self._owns_total:
            assert self._total is not None
            self._total, self._owns_total = self._total.clone(), True
            self._total_decay = None if self._total_decay is None else self._total_decay.clone()
        given, room, scale = log_decay, self._room, weighting.scale
        if log_decay is not None:
            log_decay = log_decay.to(room.keys.dtype).expand(key.shape[:3])
        prepare = decode.best_step(query.device, self._order, key.shape[3], value.shape[3])
        step = prepare(
            query,
            key,
            value,
            self._total,
            room.keys,
            room.values,
            room.decays,
            self._total_decay,
            log_decay,
            order=self._order,
            scale=1.0 if isinstance(scale, Tensor) else scale,
            normalize=weighting.normalization,
        )
        prepared = _Prepared(_signature(query, key, value, given), step, scale)
        # a step that repeats this one takes its log_decay as it comes
        is_plain = given is None or (given.dtype == room.keys.dtype and given.shape == key.shape[:3])
        self._prepared = prepared if is_plain else None
        return self._run(prepared, query, key, value, key_mask, log_decay)

    def repeated_step(
        self, query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor | None, scale: float | Tensor | None
    ) -> Tensor | None:
        """Take a step like the last one, which needs no second check. Return None if it differs or is watched."""
        prepared = self._prepared
        if prepared is None or prepared.scale is not scale:
            return None
        if prepared.signature != _signature(query, key, value, log_decay):
            return None
        if self._length == self._capacity and not self._owns_total:
            return None
        tensors = (query, key, value) if log_decay is None else (query, key, value, log_decay)
        if isinstance(scale, Tensor):
            tensors = (*tensors, scale)
        if not self.is_usable or not has_no_watcher(*tensors) or torch.is_autocast_enabled(query.device.type):
            return None
        return self._run(prepared, query, key, value, None, log_decay)

    def _run(
        self,
        prepared: _Prepared,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_mask: Tensor | None,
        log_decay: Tensor | None,
    ) -> Tensor:
        room, scale = self._room, prepared.scale
        # Writing the sum takes as long as reading it, so several of the oldest tokens join it at once.
        fold = FOLDED if self._length == self._capacity else 0
        head_scale = scale.expand(query.shape[1]) if isinstance(scale, Tensor) else None
        o = prepared.step(query, key, value, head_scale, key_mask, log_decay, self._length, fold)
        if not self._is_inference:  # tensors of that mode have no version
            written = (room.keys, room.values, room.decays, *((self._total, self._total_decay) if fold else ()))
            torch.autograd.graph.increment_version([x for x in written if x is not None])
        if key_mask is None:
            self._uncounted += 1
        else:
            self._counted, self._uncounted = self.tokens + key_mask.sum(-1), 0
            self._room = room._replace(masked=True)
        self._length += 1 - fold
        return o


def _signature(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor | None) -> Any:
    """Return what a prepared step depends on. Tensors of equal shapes, strides and dtypes need no second check."""
    tokens = (
        query.shape, query.stride(), query.dtype, query.device, key.shape, key.stride(), key.dtype, key.device,
        value.shape, value.stride(), value.dtype, value.device,
    )  # fmt: skip
    if log_decay is None:
        return tokens
    return (*tokens, log_decay.shape, log_decay.stride(), log_decay.dtype, log_decay.device)
