"""The memory of a state: a sum over the older tokens, the youngest beside it, and what queries get from both."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from fastmax._torch_private import AUTOGRAD, unwatched, watchers
from fastmax.api import fastmax_attention
from fastmax.call import normalization
from fastmax.core import normalized
from fastmax.decay import bounded, check_decays, wide
from fastmax.features import feature_count
from fastmax.state import decode
from fastmax.state.ready import Ready, like
from fastmax.state.recent import Recent, capacity

Parts = tuple[Tensor | None, Tensor | None, Recent]
"""A sum, the total of its log_decay, and the recent tokens."""

_FEW = 1 << 18
"""Features of so many numbers per head are formed at once, without the op: 122 queries at D = 64 and order 2."""


class Memory:
    """Tokens go in by `_extended`, or by `_step_in_place` where nobody watches; queries `_see` them."""

    head_dim: int
    order: int
    scale: float | Tensor
    normalize: bool | str
    _sum: (
        Tensor | None
    )  # over the older keys, faded up to the last of them, never written to; None while there are none
    _sum_decay: Tensor | None  # (B, Hkv): the total of their log_decay; None for zeros
    _seen: Recent  # the recent tokens when they were last looked at
    _owned = False  # whether nobody else can see `_sum`, so that steps may change it in place
    _room: Recent | None  # buffers that `_recent` is the beginning of, and that nobody else sees
    _length: int  # of `_recent`
    _ready: Ready | None = None  # the last step in place, for others like it
    _counted_tokens: Tensor
    _uncounted = 0  # tokens since then

    @property
    def tokens(self) -> Tensor:
        """(B,), int64: how many keys there are, those that a mask hides not counted."""
        if self._uncounted:
            self.tokens = self._counted_tokens + self._uncounted
        return self._counted_tokens

    @tokens.setter
    def tokens(self, tokens: Tensor) -> None:
        self._counted_tokens, self._uncounted = tokens, 0

    @property
    def _recent(self) -> Recent:
        if self._seen.length != self._length:
            assert self._room is not None
            self._seen = self._room.split(self._length)[0]._replace(masked=self._seen.masked)
        return self._seen

    @_recent.setter
    def _recent(self, recent: Recent) -> None:
        self._seen, self._length = recent, recent.length

    @property
    def batch(self) -> int:
        return self._seen.keys.shape[0]

    @property
    def num_kv_heads(self) -> int:
        return self._seen.keys.shape[1]

    @property
    def value_dim(self) -> int:
        return self._seen.values.shape[3] - 1

    @property
    def dtype(self) -> torch.dtype:
        return self._seen.keys.dtype

    @property
    def device(self) -> torch.device:
        return self._seen.keys.device

    @property
    def _capacity(self) -> int:
        return capacity(self.head_dim, self.value_dim, self.order)

    @property
    def log_decay(self) -> Tensor:
        """Return the total of log_decay over all tokens, (B, Hkv), by which whatever came before them has faded.

        Of each token at most `fastmax.decay.STRONGEST` counts, from which on exp is 0.
        """
        recent = self._recent.all_decays().to(wide(self.device)).sum(2)
        return recent if self._sum_decay is None else self._sum_decay + recent

    @property
    def _parts(self) -> Parts:
        return self._sum, self._sum_decay, self._recent

    @property
    def decays(self) -> bool | None:
        """True if the tokens have a log_decay, False if they have none, None if there are no tokens yet."""
        return self._decaying if self._sum is not None or self._length else None

    @property
    def _decaying(self) -> bool:
        return self._sum_decay is not None or self._recent.decays is not None

    def _tokens(self, key: Tensor, value: Tensor, key_mask: Tensor | None, log_decay: Tensor | None) -> Recent:
        how = normalization(self.normalize)
        return Recent.of(key, value, key_mask, log_decay, dtype=self.dtype, normalize=how)

    def _decays(self, log_decay: Tensor | None, key: Tensor, key_mask: Tensor | None) -> Tensor | None:
        """Return them as sums take them, (B, Hkv, N) in their dtype, 0 where a key does not count, whatever it holds."""
        if log_decay is None:
            return None
        log_decay = log_decay.to(self.dtype).expand(key.shape[:3])
        if key_mask is not None:
            log_decay = torch.where(key_mask.unsqueeze(1), log_decay, 0)
        if watchers((log_decay,)) <= AUTOGRAD:
            check_decays(log_decay)
        return bounded(log_decay).contiguous()

    def _extended(self, new: Recent, query: Tensor | None = None) -> tuple[Parts, Tensor | None]:
        """The sum and the recent tokens after these. What is too much for the recent ones goes to the sum, oldest first.

        Of the queries of these tokens, if given, some may go with them: what they get comes second.
        """
        before = self._recent.length
        recent = self._recent.then(new)
        if recent.length <= self._capacity:
            return (self._sum, self._sum_decay, recent), None
        # Half of the room stays free, so that the sum is written only once in so many steps.
        older, recent = recent.split(recent.length - self._capacity // 2)
        recent = recent.copy()  # a view would keep the older ones alive
        decay = self._decay_with(older)
        answered = older.length - before
        if query is None or answered <= 0:
            return (self._folded(older), decay, recent), None
        o, total = self._attend(query[:, :, :answered], self._sum, older, before, return_state=True)
        return (total, decay, recent), o

    def _decay_with(self, recent: Recent) -> Tensor | None:
        """The total of log_decay of the sum, and of these tokens."""
        if recent.decays is None:
            return self._sum_decay
        total = recent.decays.to(wide(self.device)).sum(2)
        return total if self._sum_decay is None else self._sum_decay + total

    def _folded(self, recent: Recent) -> Tensor:
        """The sum, and these tokens in it."""
        nobody = recent.keys.new_empty(self.batch, self.num_kv_heads, 0, self.head_dim)
        total: Tensor = self._attend(nobody, self._sum, recent, 0, scale=1.0, return_state=True)[1]
        return total

    def _fold_and_fade(self, log_decay: Tensor | None) -> None:
        """All tokens into the sum, and that by these decays, (B, Hkv): a younger sum is to be added to it."""
        total, decay = self._folded(self._recent), self._decay_with(self._recent)
        if log_decay is not None:
            total = total * log_decay.exp().to(self.dtype)[..., None, None]
            decay = log_decay if decay is None else decay + log_decay
        self._sum, self._sum_decay, self._recent = total, decay, self._recent.split(0)[0]

    def _few(self, tokens: int) -> bool:
        return tokens * feature_count(self.head_dim, self.order) <= _FEW and self.order <= 2

    def _see(self, query: Tensor, total: Tensor | None, recent: Recent, first: int | None) -> Tensor:
        """Queries read the sum and see recent tokens: query n those up to `first` + n, or all of them if that is None."""
        if total is not None and self._few(query.shape[2]):
            with self._in_full_precision():
                query = decode.scaled_query(query, self.scale, self.dtype, normalization(self.normalize))
                return decode.attend(query, total, recent, order=self.order, first=first)
        if first is None and recent.decays is not None:
            recent, first = recent.then_hidden(query.shape[2]), recent.length
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
        query = normalized(query.to(self.dtype), normalization(self.normalize))
        result: Any = fastmax_attention(
            pad(query, (0, 0, first, 0)) if first else query,
            recent.keys,
            recent.values[..., :-1],
            recent.attn_mask,
            is_causal=first is not None,
            order=self.order,
            scale=self.scale if scale is None else scale,
            normalize=False,
            log_decay=recent.decays,
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
            self._room, self._owned = None, False
        return self._recent

    def _unwatched(self, *others: Tensor | None) -> bool:
        own = (self._recent.keys, self._recent.values, self._recent.decays, self._sum, self._sum_decay, self.scale)
        return unwatched(*[x for x in (*others, *own) if isinstance(x, Tensor)])

    def _may_step_in_place(self, *tensors: Tensor | None) -> bool:
        return self._unwatched(*tensors) and not torch.is_autocast_enabled(self.device.type)

    def _step_in_place(
        self, query: Tensor, key: Tensor, value: Tensor, key_mask: Tensor | None, log_decay: Tensor | None
    ) -> Tensor:
        """One token, written beside the others where there is room; and what it takes to do so again."""
        room = self._with_room(decaying=log_decay is not None)
        if self._length == self._capacity:
            assert self._sum is not None
            if not self._owned or self._sum.is_inference() != torch.is_inference_mode_enabled():
                self._sum, self._owned = self._sum.clone(), True
                self._sum_decay = None if self._sum_decay is None else self._sum_decay.clone()
        given = log_decay
        if log_decay is not None:
            log_decay = log_decay.to(self.dtype).expand(key.shape[:3])
        elif room.decays is not None:
            log_decay = room.decays.new_zeros(self.batch, self.num_kv_heads, 1)
        prepare = decode.best_step(query.device, self.order, self.head_dim, self.value_dim)
        step = prepare(
            query,
            key,
            value,
            self._sum,
            room.keys,
            room.values,
            room.decays,
            self._sum_decay,
            log_decay,
            order=self.order,
            scale=1.0 if isinstance(self.scale, Tensor) else self.scale,
            normalize=normalization(self.normalize),
        )
        ready = Ready(
            like(query, key, value, given),
            step,
            room,
            self._sum,
            self.scale,
            log_decay if given is None else None,
            is_inference=torch.is_inference_mode_enabled(),
        )
        as_given = given is None or (given.dtype == self.dtype and given.shape == key.shape[:3])
        self._ready = ready if as_given else None
        return self._run(ready, query, key, value, key_mask, log_decay)

    def _again(self, query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor | None) -> Tensor | None:
        """A step like the last one in place, on the same buffers; None if this is none."""
        ready = self._ready
        if ready is None or ready.like != like(query, key, value, log_decay):
            return None
        if ready.room is not self._room or ready.total is not self._sum or ready.scale is not self.scale:
            return None
        if self._length == ready.room.length and not self._owned:
            return None
        tensors = (query, key, value) if log_decay is None else (query, key, value, log_decay)
        if isinstance(self.scale, Tensor):
            tensors = (*tensors, self.scale)
        same_mode = ready.is_inference == torch.is_inference_mode_enabled()
        if not same_mode or not unwatched(*tensors) or torch.is_autocast_enabled(query.device.type):
            return None
        return self._run(ready, query, key, value, None, ready.zeros if log_decay is None else log_decay)

    def _run(
        self, ready: Ready, query: Tensor, key: Tensor, value: Tensor, key_mask: Tensor | None, decay: Tensor | None
    ) -> Tensor:
        room, total = ready.room, ready.total
        count, capacity = self._length, room.length
        # Writing the sum takes as long as reading it, so several of the oldest tokens join it at once.
        fold = FOLDED if count == capacity else 0
        scale = self.scale.expand(query.shape[1]) if isinstance(self.scale, Tensor) else None
        o = ready.step(query, key, value, scale, key_mask, decay, count, fold)
        if not ready.is_inference:  # tensors of that mode have no version
            written = (room.keys, room.values, room.decays, *((total, self._sum_decay) if fold else ()))
            torch.autograd.graph.increment_version([x for x in written if x is not None])
        if key_mask is None:
            self._uncounted += 1
        else:
            self.tokens = self.tokens + key_mask.sum(-1)
            self._seen = self._seen._replace(masked=True)
        self._length = count - fold + 1
        return o

    def _with_room(self, decaying: bool) -> Recent:
        """Buffers that begin with the recent tokens and have room for one more, and for its decay if it has one."""
        size, recent = self._capacity, self._recent
        if decaying and recent.decays is None:
            recent = recent._replace(decays=recent.all_decays())
            self._room = None
        # a sum that is there takes the oldest tokens in the step itself
        joins = self._sum is not None and self.order <= 2 and (recent.decays is None or self._sum_decay is not None)
        if recent.length == size and not joins:
            older, recent = recent.split(size + 1 - size // 2)
            self._sum, self._sum_decay = self._folded(older), self._decay_with(older)
            self._room, self._owned = None, False
        # what inference mode made is not to be written to outside of it
        usable = self._room is not None and (not self._room.keys.is_inference() or torch.is_inference_mode_enabled())
        if self._room is None or not usable:
            self._room = recent.map(lambda x: _room(x, size))
            self._recent = self._room.split(recent.length)[0]
        return self._room

    def _autocast_dtype(self) -> torch.dtype | None:
        """What autocast lowers outputs to, as those of `fastmax_attention`, but not those of fp64."""
        device = self.device.type
        known = device == "cpu" or torch.amp.is_autocast_available(device)
        lowered = self.dtype == torch.float32 and known and torch.is_autocast_enabled(device)
        return torch.get_autocast_dtype(device) if lowered else None

    def _in_full_precision(self) -> AbstractContextManager[None]:
        lowered = self._autocast_dtype() is not None
        return torch.autocast(self.device.type, enabled=False) if lowered else nullcontext()

    def _zeros(self, rows: int | None = None) -> Tensor:
        rows = feature_count(self.head_dim, self.order) if rows is None else rows
        return self._recent.keys.new_zeros(self.batch, self.num_kv_heads, rows, self.value_dim + 1)


FOLDED = 4
"""How many tokens join the sum at once. A step of 8 heads of 64 takes the kernel 43 us where it reads the 4.5 MB of the sum,
97 us where four tokens join it; were it one in each step, 70 us. Values of more than four do not fit the registers."""


def _room(x: Tensor, size: int) -> Tensor:
    """x, and room for more tokens after it."""
    buffer = x.new_empty(*x.shape[:2], size, *x.shape[3:])
    buffer[:, :, : x.shape[2]] = x
    return buffer
