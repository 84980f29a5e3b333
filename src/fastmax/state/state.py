"""FastmaxState: the running sum over keys for decoding, of constant size."""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from fastmax import validation
from fastmax._torch_private import has_no_watcher
from fastmax.api import fastmax_attention
from fastmax.call import Inputs, Options, RunningState, accumulation_dtype, normalization
from fastmax.core import default_scale
from fastmax.decay import wide
from fastmax.features import feature_count
from fastmax.state import checks, file
from fastmax.state.batched import BatchedState
from fastmax.state.buffer import DecodingBuffer
from fastmax.state.contents import Contents, Weighting
from fastmax.state.recent import Recent, capacity


class FastmaxState(BatchedState, RunningState):
    """All that attention needs of the keys so far: a sum over the older ones, the youngest beside it, and their number.

    `update`, `step`, `load_state_dict` and `fastmax_attention(..., state=)` change a state. All else leaves it alone and
    returns something new, which shares no memory with it. With grad enabled, gradients flow from any output back through
    every step. With grad disabled no graph is kept.

    Memory: `nbytes`, of which B * Hkv * F * (Dv + 1) * itemsize are the sum's, F = C(D + order, order). `break_even` returns
    the length from which a cache of keys and values takes more.

    `empty` makes a state without keys. This constructor goes on from a sum that `fastmax_attention` returned:

    Args:
        tensor: (B, Hkv, F, Dv + 1), fp32 or fp64: the sum over keys. It is copied.
        tokens: (B,), int64: how many keys are in it, those that a mask hides not counted. Copied too.
        head_dim: the channels of a key, D.
        order: the degree of the polynomial in the call that returned the sum.
        normalize: the normalization in that call.
        scale: multiplies s = q̂ . k̂. Default: the scale of the first call of `fastmax_attention` with this state. A tensor is
            not copied: it may be learned.
        log_decay: (B, Hkv): the total of log_decay over those keys. Required if and only if they decay.
    """

    batch: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device
    order: int | None  # None until the first call sets it, like the next two
    scale: float | Tensor | None
    normalize: bool | str | None
    FORMAT = "fastmax.state"
    _contents: Contents | None  # None while a buffer holds them
    _buffer: DecodingBuffer | None

    def __init__(
        self,
        tensor: Tensor,
        tokens: Tensor,
        *,
        head_dim: int,
        order: int,
        normalize: bool | str,
        scale: float | Tensor | None = None,
        log_decay: Tensor | None = None,
    ) -> None:
        checks.options(head_dim, order, normalize)
        checks.total(tensor, head_dim, order)
        batch, heads, _, columns = tensor.shape
        checks.sizes(batch, heads, columns - 1, tensor.dtype)
        checks.tokens(tokens, batch, tensor.device)
        if log_decay is not None:
            checks.decay_total(log_decay, batch, heads, tensor.device)
            log_decay = log_decay.to(wide(tensor.device), copy=True)
        recent = Recent.empty(batch, heads, head_dim, columns - 1, tensor.dtype, tensor.device)
        total = tensor.clone(memory_format=torch.contiguous_format)
        self._set(Contents(total, log_decay, recent, tokens.clone()), order, scale, normalize)

    @classmethod
    def empty(
        cls,
        batch: int,
        num_kv_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        order: int | None = None,
        *,
        scale: float | Tensor | None = None,
        normalize: bool | str | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> Self:
        """Return a state without keys. For a layer, `layer.new_state(batch)` makes one that fits.

        Leave `order`, `scale` and `normalize` out to take them from the first call of `fastmax_attention` with this state.
        `update`, `step` and `read` need all three.

        Args:
            batch: how many sequences, B.
            num_kv_heads: heads of keys and values, Hkv.
            head_dim: channels of a key, D.
            value_dim: channels of a value, Dv; default D.
            order: this, `scale` and `normalize` are those of `fastmax_attention`.
            dtype: of the sums, fp32 or fp64.
            device: where they are.

        Example:
            >>> state = FastmaxState.empty(1, 4, 32)
            >>> q, k, v = (torch.randn(1, 4, 1, 32) for _ in range(3))
            >>> fastmax_attention(q, k, v, is_causal=True, state=state).shape
            torch.Size([1, 4, 1, 32])
        """
        value_dim = head_dim if value_dim is None else value_dim
        checks.options(head_dim, order, normalize)
        checks.sizes(batch, num_kv_heads, value_dim, dtype)
        recent = Recent.empty(batch, num_kv_heads, head_dim, value_dim, dtype, device)
        tokens = torch.zeros(batch, dtype=torch.int64, device=device)
        return cls._of(Contents(None, None, recent, tokens), order, scale, normalize)

    def update(
        self, key: Tensor, value: Tensor, key_mask: Tensor | None = None, log_decay: Tensor | None = None
    ) -> None:
        """Add keys (B, Hkv, N, D) and values (B, Hkv, N, Dv), except those where `key_mask` (B, N) is False.

        `log_decay`, <= 0, broadcastable to (B, Hkv, N), is that of `fastmax_attention`: each token fades all that came
        before it by exp(log_decay). A key that the mask hides fades nothing.
        """
        weighting, contents = self._weighting, self._now()
        checks.keys(key, value, key_mask, log_decay, contents.recent, contents.decays)
        new = contents.new_tokens(key, value, key_mask, log_decay, weighting)
        self._replace(self._take().extended(new, _count(key, key_mask), weighting)[0])

    def read(self, query: Tensor) -> Tensor:
        """Return what queries (B, Hq, N, D) get from all keys so far: (B, Hq, N, Dv), zeros if there are none.

        If tokens decay, the queries stand at the last token: it fades what was before it, and nothing fades after it.
        """
        weighting, contents = self._weighting, self._peek(query)
        checks.queries(query, None, contents.recent, weighting.scale)
        return contents.attend(query, None, weighting).to(contents.autocast_dtype() or query.dtype)

    def step(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_mask: Tensor | None = None,
        log_decay: Tensor | None = None,
    ) -> Tensor:
        """Decode one token or a few: add them as `update` does, and let each query see all keys up to and with its token.

        (B, Hq, N, D), (B, Hkv, N, D) and (B, Hkv, N, Dv) -> (B, Hq, N, Dv).
        """
        if self._buffer is not None and key_mask is None:
            repeated = self._buffer.repeated_step(query, key, value, log_decay, self.scale)
            if repeated is not None:
                return repeated
        weighting, contents = self._weighting, self._now()
        checks.keys(key, value, key_mask, log_decay, contents.recent, contents.decays)
        checks.queries(query, key.shape[2], contents.recent, weighting.scale)
        if query.shape[2] == 1 and self._may_step_in_place(query, key, value, key_mask, log_decay):
            buffer = self._buffer_with_room(weighting.order, decaying=log_decay is not None)
            output = buffer.step(query, key, value, key_mask, log_decay, weighting)
            self._contents, self._buffer = None, buffer
            return output
        new = contents.new_tokens(key, value, key_mask, log_decay, weighting)
        contents, early = self._take().extended(new, _count(key, key_mask), weighting, query)
        late = query if early is None else query[:, :, early.shape[2] :]
        o = contents.attend(late, contents.recent.length - late.shape[2], weighting)
        self._replace(contents)
        return (o if early is None else torch.cat((early, o), 2)).to(contents.autocast_dtype() or value.dtype)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None,
        scale: float | Tensor | None,
        log_decay: Tensor | None,
        options: Options,
    ) -> Tensor:
        """Run `fastmax_attention(..., state=self)`.

        The options of the first call become those of the state. They are compared in every later call: a sum of keys under
        other options is another sum. A scale that is a tensor may change, because it multiplies queries alone.
        """
        if not options.is_causal:
            raise ValueError("attention with a state is causal: is_causal must be True")
        if options.backend != "auto":
            raise ValueError(
                f"a state picks the backends of its steps: backend must be 'auto', got {options.backend!r}"
            )
        is_plain = attn_mask is None and not options.dropout_p
        if self._buffer is not None and is_plain and self._has(options, scale):
            repeated = self._buffer.repeated_step(query, key, value, log_decay, self.scale)
            if repeated is not None:
                return repeated
        validation.attention(Inputs(query, key, value, attn_mask, scale, log_decay), options)
        scale = default_scale(options.order, self.head_dim) if scale is None else scale
        normalize = _given(options.normalize)
        expected = {"order": self.order, "scale": checks.kind(self.scale), "normalize": self.normalize}
        got = {"order": options.order, "scale": checks.kind(scale), "normalize": normalize}
        checks.same("with the calls that they are given to", expected, got)
        key_mask = None if attn_mask is None else checks.key_mask(attn_mask, key)
        contents = self._now()
        checks.keys(key, value, key_mask, log_decay, contents.recent, contents.decays)
        checks.queries(query, key.shape[2], contents.recent, scale)
        if self.scale is None or isinstance(scale, Tensor):  # a prepared step knows its number by identity
            self.scale = scale
        self.order, self.normalize = options.order, normalize
        if not options.dropout_p:
            return self.step(query, key, value, key_mask, log_decay)
        # Terms of these queries and keys are dropped, but the state keeps whole keys.
        before = self.tensor.to(accumulation_dtype(query.dtype, key.dtype, value.dtype))
        o = fastmax_attention(
            query,
            key,
            value,
            attn_mask,
            options.dropout_p,
            True,
            order=options.order,
            scale=scale,
            normalize=normalize,
            log_decay=log_decay,
            enable_gqa=options.enable_gqa,
            initial_state=before,
            dropout_mode=options.dropout_mode,
        )
        self.update(key, value, key_mask, log_decay)
        return o

    def __add__(self, other: "FastmaxState") -> "FastmaxState":
        """Return the state after the keys of both. Their order does not matter, unless tokens decay.

        Then `other` is the younger one, and its tokens fade this one: by the exp of its `log_decay` in all.
        """
        if not isinstance(other, FastmaxState):
            return NotImplemented
        checks.same("to be added", self._describe(), other._describe())
        order, scale, normalize = (
            getattr(other if getattr(self, name) is None else self, name) for name in ("order", "scale", "normalize")
        )
        contents, younger = self._peek().map(Tensor.clone), other._peek()
        if younger.decays is not None:
            contents = contents.added(younger, order)
        return FastmaxState._of(contents, order, scale, normalize)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "FastmaxState":
        """Return a copy on another device or in another dtype, fp32 or fp64."""
        checks.sizes(self.batch, self.num_kv_heads, self.value_dim, dtype or self.dtype)
        contents = self._peek().map(
            lambda x: x.to(device=device, dtype=dtype if x.is_floating_point() else None, copy=True)
        )
        before = self._now().total_decay
        if before is not None:  # which keeps its dtype
            contents = contents._replace(total_decay=before.to(contents.device, wide(contents.device), copy=True))
        scale = self.scale.to(device=device) if isinstance(self.scale, Tensor) else self.scale
        return FastmaxState._of(contents, self.order, scale, self.normalize)

    @property
    def tokens(self) -> Tensor:
        """Return how many keys there are, (B,), int64, those that a mask hides not counted."""
        return self._now().tokens if self._buffer is None else self._buffer.tokens

    @property
    def tensor(self) -> Tensor:
        """Return the sum over all keys, (B, Hkv, F, Dv + 1), a copy: the `initial_state` of `fastmax_attention`.

        Faded up to the last token, if tokens decay.
        """
        self._need("order")
        assert self.order is not None
        return self._peek().whole_sum(self.order)

    @property
    def decays(self) -> bool | None:
        """Return True if the tokens have a log_decay, False if they have none, None if there are no tokens yet."""
        return self._now().decays

    @property
    def log_decay(self) -> Tensor:
        """Return the total of log_decay over all tokens, (B, Hkv), by which all that came before them has faded.

        Of each token at most `fastmax.decay.STRONGEST` counts, from which on exp is 0.
        """
        return self._now().log_decay

    @property
    def nbytes(self) -> int:
        """Return an upper bound in bytes, reached after about 100 tokens."""
        self._need("order")
        assert self.order is not None
        per_head = _numbers(self.head_dim, self.value_dim, self.order) * self.dtype.itemsize
        if self.decays:
            room = capacity(self.head_dim, self.value_dim, self.order)
            per_head += room * self.dtype.itemsize + wide(self.device).itemsize
        return self.batch * self.num_kv_heads * per_head

    @staticmethod
    def break_even(
        head_dim: int,
        value_dim: int | None = None,
        order: int = 2,
        *,
        dtype: torch.dtype = torch.float32,
        cache_dtype: torch.dtype = torch.float32,
    ) -> int:
        """Return from how many tokens on keys and values, in `cache_dtype`, take more memory than a state in `dtype`.

        1219 for D = Dv = 64, order 2, all in fp32; 2437 beside a cache in bf16. Time breaks even at about the same place, as
        both are bound by memory: measured for eight heads of 64 between 1,024 and 2,048 tokens (docs/performance.md).
        """
        value_dim = head_dim if value_dim is None else value_dim
        state = _numbers(head_dim, value_dim, order) * dtype.itemsize
        return state // ((head_dim + value_dim) * cache_dtype.itemsize) + 1

    def state_dict(self) -> dict[str, Any]:
        """Return a detached copy of everything, for torch.save and `load_state_dict`.

        The sum has no rows while it is empty; the decays are of shape (0,) where no token decays.
        """
        return file.entries(self._peek(), self._weighting)

    @classmethod
    def from_state_dict(cls, state_dict: dict[str, Any]) -> Self:
        """Return a copy of the state that `state_dict` describes."""
        contents, weighting = file.contents(state_dict)
        return cls._of(contents, *weighting)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a copy of that state, on this one's device. Only the batch and the decays may differ."""
        state = FastmaxState.from_state_dict(state_dict).to(self.device)
        expected = {**self._describe(), "batch": state.batch, "decays": state.decays}
        checks.same("to be loaded", expected, state._describe())
        self._set(state._peek(), state.order, state.scale if self.scale is None else self.scale, state.normalize)

    def __getstate__(self) -> dict[str, Any]:
        """Return what pickle and copies keep: the contents, without a decoding buffer."""
        contents = self._now() if self._buffer is None else self._buffer.snapshot()
        recent = contents.recent.map(lambda x: x.clone(memory_format=torch.contiguous_format))  # not the room around it
        return {**self.__dict__, "_contents": contents._replace(recent=recent), "_buffer": None}

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in self._describe().items())
        nbytes = None if self.order is None else self.nbytes
        return f"FastmaxState({options}, device={self.device}, nbytes={nbytes})"

    @classmethod
    def _of(
        cls, contents: Contents, order: int | None, scale: float | Tensor | None, normalize: bool | str | None
    ) -> Self:
        """Return a state that owns these contents."""
        state = cls.__new__(cls)
        state._set(contents, order, scale, normalize)
        return state

    def _set(
        self, contents: Contents, order: int | None, scale: float | Tensor | None, normalize: bool | str | None
    ) -> None:
        keys = contents.recent.keys
        checks.scale(scale, keys.shape[1])
        self.batch, self.num_kv_heads, _, self.head_dim = keys.shape
        self.value_dim, self.dtype, self.device = contents.value_dim, keys.dtype, keys.device
        self.order, self.scale, self.normalize = order, scale, normalize
        self._replace(contents)

    def _replace(self, contents: Contents) -> None:
        self._contents, self._buffer = contents, None

    def _now(self) -> Contents:
        """Return the contents, for a look that keeps no tensor of them."""
        if self._buffer is not None:
            return self._buffer.contents()
        assert self._contents is not None
        return self._contents

    def _peek(self, *others: Tensor) -> Contents:
        """Return the contents for use with these tensors before the next step. A graph may keep them for later."""
        contents = self._now()
        scale = (self.scale,) if isinstance(self.scale, Tensor) else ()
        if self._buffer is None or has_no_watcher(*others, *scale, *contents.tensors):
            return contents
        return self._buffer.snapshot()

    def _take(self) -> Contents:
        """Return the contents and drop the buffer that may hold them, so that no step writes to them."""
        contents = self._now()
        self._replace(contents)
        return contents

    def _buffer_with_room(self, order: int, *, decaying: bool) -> DecodingBuffer:
        """Return the buffer of this state, or another with its contents if that one cannot take a token."""
        buffer = self._buffer
        if buffer is None or not buffer.is_usable:
            buffer = DecodingBuffer(self._now(), order, decaying=decaying)
        if not buffer.has_room:
            size = capacity(self.head_dim, self.value_dim, order)
            contents = buffer.contents().with_oldest_in_sum(size + 1 - size // 2, order)
            buffer = DecodingBuffer(contents, order, decaying=decaying)
        return buffer

    def _may_step_in_place(self, *given: Tensor | None) -> bool:
        tensors = [*given, self.scale, *self._now().tensors]
        watched = not has_no_watcher(*[x for x in tensors if isinstance(x, Tensor)])
        return not watched and not torch.is_autocast_enabled(self.device.type)

    def _map(self, f: Callable[[Tensor], Tensor]) -> Self:
        return self._of(self._peek().map(f), self.order, self.scale, self.normalize)

    @property
    def _weighting(self) -> Weighting:
        """Return the options, or raise: a default for a missing one could differ from that of training."""
        self._need("order", "scale", "normalize")
        return Weighting(self.order, self.scale, self.normalize)  # type: ignore[arg-type]

    def _need(self, *names: str) -> None:
        missing = " and ".join(name for name in names if getattr(self, name) is None)
        if missing:
            raise ValueError(
                f"this state has no {missing} yet: give the first tokens to fastmax_attention(..., state=state), which "
                f"states the options once, or pass {missing} when you create the state"
            )

    def _has(self, options: Options, scale: float | Tensor | None) -> bool:
        """Return True if the options of the state are set and equal to these."""
        if self.order != options.order or self.normalize is None:
            return False
        if normalization(self.normalize) != options.normalize:
            return False
        if isinstance(scale, Tensor) or isinstance(self.scale, Tensor):
            return scale is self.scale
        return self.scale == (default_scale(options.order, self.head_dim) if scale is None else scale)

    def _describe(self) -> dict[str, Any]:
        """Return what two states must have in common to be added, None where it is not set."""
        return {
            "batch": self.batch,
            "num_kv_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "value_dim": self.value_dim,
            "order": self.order,
            "scale": self.scale.tolist() if isinstance(self.scale, Tensor) else self.scale,
            "normalize": self.normalize,
            "decays": self.decays,
            "dtype": self.dtype,
        }


def _count(key: Tensor, key_mask: Tensor | None) -> Tensor | int:
    """Return how many keys count, per batch element if they differ."""
    return key.shape[2] if key_mask is None else key_mask.sum(-1)


def _given(normalize: str) -> bool | str:
    """Return what a caller passes for this canonical name."""
    return {"standardize": True, "none": False}.get(normalize, normalize)


def _numbers(head_dim: int, value_dim: int, order: int) -> int:
    """Return how many numbers a state has per head: those of the sum, and of the tokens beside it."""
    total = feature_count(head_dim, order) * (value_dim + 1)
    return total + capacity(head_dim, value_dim, order) * (head_dim + value_dim + 1)
