"""FastmaxState: the running sum over keys, all that decoding has to remember, of constant size."""

from collections.abc import Callable
from os import PathLike
from typing import Any, Self

import torch
from torch import Tensor

from fastmax import validation
from fastmax.api import fastmax_attention
from fastmax.call import Options, RunningState, accumulation_dtype, normalization
from fastmax.core import default_scale
from fastmax.decay import wide
from fastmax.features import feature_count
from fastmax.state import checks, file
from fastmax.state.memory import Memory, Parts
from fastmax.state.recent import Recent, capacity


class FastmaxState(Memory, RunningState):
    """What attention needs of all the keys so far, and how many they were: a sum over the older ones, and the youngest.

    `update`, `step` and `load_state_dict` change a state; everything else leaves it alone and returns something new, which
    shares no memory with it. With grad enabled, gradients flow from any output back through every step. With grad disabled
    nothing is kept.

    Memory: `nbytes`, of which B * Hkv * F * (Dv + 1) * itemsize are the sum's, F = C(D + order, order). Where that beats a
    cache of keys and values `break_even` tells.

    `empty` makes one without keys. This constructor goes on from a sum that `fastmax_attention` returned:

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
        total = tensor.clone(memory_format=torch.contiguous_format)
        parts = total, log_decay, _nothing(batch, heads, head_dim, columns, tensor.dtype, tensor.device)
        self._set(parts, tokens.clone(), head_dim, order, scale, normalize)

    def _set(
        self,
        parts: Parts,
        tokens: Tensor,
        head_dim: int,
        order: int | None,
        scale: float | Tensor | None,
        normalize: bool | str | None,
    ) -> Self:
        checks.scale(scale, parts[2].keys.shape[1])
        self._go_on(parts, tokens)
        self.head_dim = head_dim
        # None until they are known, which `_need` checks
        self.order, self.scale, self.normalize = order, scale, normalize  # type: ignore[assignment]
        return self

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
            order: the degree of the polynomial.
            scale: multiplies s = q̂ . k̂.
            normalize: True, "rms" or False, as in `fastmax_attention`.
            dtype: of the sums, fp32 or fp64.
            device: where they are.
        """
        value_dim = head_dim if value_dim is None else value_dim
        checks.options(head_dim, order, normalize)
        checks.sizes(batch, num_kv_heads, value_dim, dtype)
        nothing = _nothing(batch, num_kv_heads, head_dim, value_dim + 1, dtype, device)
        tokens = torch.zeros(batch, dtype=torch.int64, device=device)
        return cls.__new__(cls)._set((None, None, nothing), tokens, head_dim, order, scale, normalize)

    def update(
        self, key: Tensor, value: Tensor, key_mask: Tensor | None = None, log_decay: Tensor | None = None
    ) -> None:
        """Add keys (B, Hkv, N, D) and values (B, Hkv, N, Dv); of those where `key_mask` (B, N) is False, nothing.

        `log_decay`, <= 0, broadcastable to (B, Hkv, N), is that of `fastmax_attention`: each token fades all that came
        before it by exp(log_decay). A key that the mask hides fades nothing.
        """
        self._need("order", "scale", "normalize")
        checks.keys(key, value, key_mask, log_decay, self._recent, self.decays)
        log_decay = self._decays(log_decay, key, key_mask)
        parts, _ = self._extended(self._tokens(key, value, key_mask, log_decay))
        self._go_on(parts, self._counted(key, key_mask))

    def read(self, query: Tensor) -> Tensor:
        """What queries (B, Hq, N, D) get from all keys so far: (B, Hq, N, Dv), zeros if there are none.

        Where tokens decay, the queries come at the last one: it fades what was before it, and nothing after it does.
        """
        self._need("order", "scale", "normalize")
        checks.queries(query, None, self._recent, self.scale)
        o = self._see(query, self._sum, self._shown(query), None)
        return o.to(self._autocast_dtype() or query.dtype)

    def step(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_mask: Tensor | None = None,
        log_decay: Tensor | None = None,
    ) -> Tensor:
        """Decode one token, or a few: add their keys and values as `update` does; each query sees all up to and with its own.

        (B, Hq, N, D), (B, Hkv, N, D) and (B, Hkv, N, Dv) -> (B, Hq, N, Dv).
        """
        if key_mask is None:
            o = self._again(query, key, value, log_decay)
            if o is not None:
                return o
        self._need("order", "scale", "normalize")
        checks.keys(key, value, key_mask, log_decay, self._recent, self.decays)
        checks.queries(query, key.shape[2], self._recent, self.scale)
        if query.shape[2] == 1 and self._may_step_in_place(query, key, value, key_mask, log_decay):
            return self._step_in_place(query, key, value, key_mask, log_decay)
        log_decay = self._decays(log_decay, key, key_mask)
        tokens = self._counted(key, key_mask)
        parts, early = self._extended(self._tokens(key, value, key_mask, log_decay), query)
        total, _, recent = parts
        late = query if early is None else query[:, :, early.shape[2] :]
        o = self._see(late, total, recent, recent.length - late.shape[2])
        self._go_on(parts, tokens)
        return (o if early is None else torch.cat((early, o), 2)).to(self._autocast_dtype() or value.dtype)

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
            raise ValueError(
                "tokens see those that the state holds and not the other way round: is_causal must be True"
            )
        if options.backend != "auto":
            raise ValueError(
                f"a state picks the backends of its steps: backend must be 'auto', got {options.backend!r}"
            )
        if attn_mask is None and not options.dropout_p and self._has(options, scale):
            o = self._again(query, key, value, log_decay)
            if o is not None:
                return o
        validation.attention(query, key, value, attn_mask, scale, log_decay, None, options)
        scaled = default_scale(options.order, self.head_dim) if scale is None else scale
        called = {"order": options.order, "scale": _kind(scaled), "normalize": _given(options.normalize)}
        ours = {"order": self.order, "scale": _kind(self.scale), "normalize": self.normalize}
        checks.same("with the calls that they are given to", *_known_to_both(ours, called))
        key_mask = None if attn_mask is None else checks.key_mask(attn_mask, key)
        checks.keys(key, value, key_mask, log_decay, self._recent, self.decays)
        checks.queries(query, key.shape[2], self._recent, scaled)
        self.order, self.scale, self.normalize = options.order, scaled, _given(options.normalize)
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
            scale=scaled,
            normalize=self.normalize,
            log_decay=log_decay,
            enable_gqa=options.enable_gqa,
            initial_state=before,
            dropout_mode=options.dropout_mode,
        )
        self.update(key, value, key_mask, log_decay)
        return o

    def __add__(self, other: "FastmaxState") -> "FastmaxState":
        """The state after the keys of both. It is a sum, so that their order does not matter, unless tokens decay.

        Then `other` is the younger one, and its tokens fade this one: by the exp of its `log_decay` in all.
        """
        if not isinstance(other, FastmaxState):
            return NotImplemented
        checks.same("to be added", *_known_to_both(self._describe(), other._describe()))
        both = self.clone()
        for name in ("order", "scale", "normalize"):
            if getattr(both, name) is None:
                setattr(both, name, getattr(other, name))
        if self.decays is None and other.decays is None:
            return both
        if other._sum is not None:
            if both._decaying or other._decaying:
                both._fold_and_fade(other._sum_decay)
            both._sum = other._sum.clone() if both._sum is None else both._sum + other._sum
        parts, _ = both._extended(other._shown())
        both._go_on(parts, self.tokens + other.tokens)
        return both

    def select(self, index: Tensor) -> "FastmaxState":
        """The batch elements at `index`, (n,): any number of them, in any order, repeated at will."""
        return self._map(lambda x: x.index_select(0, index))

    def reorder(self, index: Tensor) -> "FastmaxState":
        """`select` of as many as there are: each beam goes on from the state of beam index[i]."""
        if tuple(index.shape) != (self.batch,):
            raise ValueError(
                f"index must have one entry per batch element, shape ({self.batch},), got {tuple(index.shape)}"
            )
        return self.select(index)

    def repeat_interleave(self, repeats: int) -> "FastmaxState":
        """Each batch element `repeats` times in a row, to start a beam search from."""
        return self._map(lambda x: x.repeat_interleave(repeats, 0))

    def clone(self) -> "FastmaxState":
        return self._map(Tensor.clone)

    __copy__ = clone

    def detach(self) -> "FastmaxState":
        """A copy from which no gradient flows back."""
        return self._map(lambda x: x.detach().clone())

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "FastmaxState":
        """A copy on another device or in another dtype, fp32 or fp64."""
        checks.sizes(self.batch, self.num_kv_heads, self.value_dim, dtype or self.dtype)
        state = self._map(lambda x: x.to(device=device, dtype=dtype if x.is_floating_point() else None, copy=True))
        if isinstance(self.scale, Tensor):
            state.scale = self.scale.to(device=device)
        if self._sum_decay is not None:
            state._sum_decay = self._sum_decay.to(state.device, wide(state.device), copy=True)
        return state

    @property
    def tensor(self) -> Tensor:
        """The sum over all keys, (B, Hkv, F, Dv + 1), a copy: what `fastmax_attention` takes as `initial_state`.

        Faded up to the last token, if tokens decay.
        """
        self._need("order")
        recent = self._shown()
        if recent.length:
            return self._folded(recent)
        return self._zeros() if self._sum is None else self._sum.clone()

    @property
    def nbytes(self) -> int:
        """Upper bound in bytes, reached after about 100 tokens."""
        self._need("order")
        per_head = _numbers(self.head_dim, self.value_dim, self.order) * self.dtype.itemsize
        if self.decays:
            per_head += self._capacity * self.dtype.itemsize + wide(self.device).itemsize
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
        """The least number of tokens whose keys and values, in `cache_dtype`, take more memory than a state in `dtype`.

        1219 for D = Dv = 64, order 2, all in fp32; 2437 beside a cache in bf16. Time breaks even at about the same place, as
        both are bound by memory: measured for eight heads of 64 between 1,024 and 2,048 tokens (docs/performance.md).
        """
        value_dim = head_dim if value_dim is None else value_dim
        state = _numbers(head_dim, value_dim, order) * dtype.itemsize
        return state // ((head_dim + value_dim) * cache_dtype.itemsize) + 1

    def state_dict(self) -> dict[str, Any]:
        """A detached copy of everything, for torch.save and `load_state_dict`.

        The sum has no rows while it is empty; the decays are of shape (0,) where no token decays.
        """
        self._need("order", "scale", "normalize")
        now = self.detach()
        return {
            "version": file.VERSION,
            "order": self.order,
            "head_dim": self.head_dim,
            "value_dim": self.value_dim,
            "normalize": self.normalize,
            "scale": self.scale.detach().clone() if isinstance(self.scale, Tensor) else self.scale,
            "sum": self._zeros(rows=0) if now._sum is None else now._sum,
            "sum_decay": now.tokens.new_empty(0, dtype=self.dtype) if now._sum_decay is None else now._sum_decay,
            "recent_keys": now._recent.keys,
            "recent_values": now._recent.values,
            "recent_decays": now.tokens.new_empty(0, dtype=self.dtype)
            if now._recent.decays is None
            else now._recent.decays,
            "tokens": now.tokens,
        }

    @classmethod
    def from_state_dict(cls, state_dict: dict[str, Any]) -> Self:
        """The inverse of `state_dict`; a copy."""
        entries = file.checked(state_dict)
        head_dim, order, normalize = entries["head_dim"], entries["order"], entries["normalize"]
        checks.options(head_dim, order, normalize)
        tensors = (entries[name].clone() for name in file.TENSORS)
        total, decay, keys, values, decays, tokens = tensors
        masked = bool((values[..., -1:] == 0).any())
        recent = Recent(keys, values, None if decays.shape == (0,) else decays, masked)
        parts = total if total.shape[2] else None, None if decay.shape == (0,) else decay, recent
        checks.stored(*parts, tokens, head_dim, order)
        scale = entries["scale"].clone() if isinstance(entries["scale"], Tensor) else entries["scale"]
        return cls.__new__(cls)._set(parts, tokens, head_dim, order, scale, normalize)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a copy of that state, on this one's device. Only the batch may differ."""
        state = FastmaxState.from_state_dict(state_dict).to(self.device)
        ours = self._describe()
        ours["batch"], ours["decays"] = state.batch, state.decays
        checks.same("to be loaded", *_known_to_both(ours, state._describe()))
        self.order, self.normalize = state.order, state.normalize
        self.scale = state.scale if self.scale is None else self.scale
        self._go_on(state._parts, state.tokens)

    def save(self, path: str | PathLike[str]) -> None:
        """To a safetensors file (needs the extra "hf"), atomically: a reader finds the old file or the new one, whole."""
        file.save(self.state_dict(), path)

    @classmethod
    def load(cls, path: str | PathLike[str], device: torch.device | str = "cpu") -> Self:
        """From a file that `save` wrote; ValueError if it is not one, or not whole."""
        try:
            return cls.from_state_dict(file.load(path, device))
        except ValueError as error:
            raise ValueError(f"{path} does not hold a FastmaxState: {error}") from error

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copies: without spare room. A shallow one shares the sum, so neither may change it in place."""
        self._owned, tokens = False, self.tokens
        kept = {"_seen": self._recent.copy(), "_counted_tokens": tokens, "_uncounted": 0, "_room": None, "_ready": None}
        return {**self.__dict__, **kept}

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in self._describe().items())
        nbytes = None if self.order is None else self.nbytes
        return f"FastmaxState({options}, device={self.device}, nbytes={nbytes})"

    def _describe(self) -> dict[str, Any]:
        """Return what two states must have in common to be added."""
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

    def _has(self, options: Options, scale: float | Tensor | None) -> bool:
        """Return True if the options of the state are known and equal to these."""
        if self.order != options.order or normalization(self.normalize) != options.normalize:
            return False
        if isinstance(scale, Tensor) or isinstance(self.scale, Tensor):
            return scale is self.scale
        return self.scale == (default_scale(self.order, self.head_dim) if scale is None else scale)

    def _need(self, *names: str) -> None:
        """Refuse a use of options that are not known yet. A default could differ from those of training."""
        missing = " and ".join(name for name in names if getattr(self, name) is None)
        if missing:
            raise ValueError(
                f"this state has no {missing} yet: give the first tokens to fastmax_attention(..., state=state), which "
                f"states the options once, or pass {missing} when you create the state"
            )

    def _map(self, f: Callable[[Tensor], Tensor]) -> "FastmaxState":
        """Of the same options, with these tensors, which must be new."""
        recent = self._shown()
        total, decay = (None if x is None else f(x) for x in (self._sum, self._sum_decay))
        parts = total, decay, recent.map(f)
        return FastmaxState.__new__(FastmaxState)._set(
            parts, f(self.tokens), self.head_dim, self.order, self.scale, self.normalize
        )

    def _counted(self, key: Tensor, key_mask: Tensor | None) -> Tensor:
        return self.tokens + (key.shape[2] if key_mask is None else key_mask.sum(-1))

    def _go_on(self, parts: Parts, tokens: Tensor) -> None:
        self._sum, self._sum_decay, self._recent = parts
        self._room, self._owned, self.tokens = None, False, tokens


def _given(normalize: str) -> bool | str:
    """Return what a caller passes for this canonical name."""
    return {"standardize": True, "none": False}.get(normalize, normalize)


def _kind(scale: float | Tensor | None) -> float | str | None:
    """Describe a scale, of a tensor its shape: its values may be learned."""
    return f"tensor of shape {tuple(scale.shape)}" if isinstance(scale, Tensor) else scale


def _known_to_both(a: dict[str, Any], b: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Drop what either does not know yet."""
    names = [name for name in a if a[name] is not None and b[name] is not None]
    return {name: a[name] for name in names}, {name: b[name] for name in names}


def _nothing(
    batch: int, heads: int, head_dim: int, columns: int, dtype: torch.dtype, device: torch.device | str | None
) -> Recent:
    """No recent tokens."""
    keys, values = (torch.empty(batch, heads, 0, n, dtype=dtype, device=device) for n in (head_dim, columns))
    return Recent(keys, values, None, masked=False)


def _numbers(head_dim: int, value_dim: int, order: int) -> int:
    """How many numbers a state has per head: those of the sum, and of the tokens beside it."""
    total = feature_count(head_dim, order) * (value_dim + 1)
    return total + capacity(head_dim, value_dim, order) * (head_dim + value_dim + 1)
