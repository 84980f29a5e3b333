"""FastmaxState: the running sum over keys, all that decoding has to remember, of constant size."""

from collections.abc import Callable
from os import PathLike
from typing import Any, Self

import torch
from torch import Tensor

from fastmax.core import default_scale
from fastmax.features import feature_count
from fastmax.state import checks, file
from fastmax.state.memory import Memory
from fastmax.state.recent import Recent, capacity


class FastmaxState(Memory):
    """What attention needs of all the keys so far, and how many they were: a sum over the older ones, and the youngest.

    `update`, `step` and `load_state_dict` change a state; everything else leaves it alone and returns something new, which
    shares no memory with it. With grad enabled, gradients flow from any output back through every step. With grad disabled
    nothing is kept.

    Memory: `nbytes`, of which B * Hkv * F * (Dv + 1) * itemsize are the sum's, F = C(D + order, order). Where that beats a
    cache of keys and values `break_even` tells.

    Args:
        tensor: (B, Hkv, F, Dv + 1), fp32 or fp64: the state that `fastmax_attention` returned. It is copied.
        tokens: (B,), int64: how many keys are in it, those that a mask hides not counted. Copied too.
        head_dim, order, scale, normalize: those of the calls of `fastmax_attention`, fixed at creation. A scale that is a
            tensor is not copied: it may be learned.
    """

    tokens: Tensor

    def __init__(
        self,
        tensor: Tensor,
        tokens: Tensor,
        *,
        head_dim: int,
        order: int = 2,
        scale: float | Tensor | None = None,
        normalize: bool = True,
    ) -> None:
        checks.options(head_dim, order, normalize)
        checks.total(tensor, head_dim, order)
        batch, heads, _, columns = tensor.shape
        checks.sizes(batch, heads, columns - 1, tensor.dtype)
        checks.tokens(tokens, batch, tensor.device)
        nothing = Recent(
            tensor.new_empty(batch, heads, 0, head_dim), tensor.new_empty(batch, heads, 0, columns), masked=False
        )
        total = tensor.clone(memory_format=torch.contiguous_format)
        self._set(total, nothing, tokens.clone(), head_dim, order, scale, normalize)

    def _set(
        self,
        total: Tensor | None,
        recent: Recent,
        tokens: Tensor,
        head_dim: int,
        order: int,
        scale: float | Tensor | None,
        normalize: bool,
    ) -> Self:
        checks.scale(scale, recent.keys.shape[1])
        self._go_on(total, recent, tokens)
        self.head_dim, self.order, self.normalize = head_dim, order, normalize
        self.scale = default_scale(order, head_dim) if scale is None else scale
        return self

    @classmethod
    def empty(
        cls,
        batch: int,
        num_kv_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        order: int = 2,
        *,
        scale: float | Tensor | None = None,
        normalize: bool = True,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> Self:
        """No keys yet. `value_dim` defaults to `head_dim`; `dtype` is that of the sums, fp32 or fp64."""
        value_dim = head_dim if value_dim is None else value_dim
        checks.options(head_dim, order, normalize)
        checks.sizes(batch, num_kv_heads, value_dim, dtype)
        nothing = Recent(
            torch.empty(batch, num_kv_heads, 0, head_dim, dtype=dtype, device=device),
            torch.empty(batch, num_kv_heads, 0, value_dim + 1, dtype=dtype, device=device),
            masked=False,
        )
        tokens = torch.zeros(batch, dtype=torch.int64, device=device)
        return cls.__new__(cls)._set(None, nothing, tokens, head_dim, order, scale, normalize)

    def update(self, key: Tensor, value: Tensor, key_mask: Tensor | None = None) -> None:
        """Add keys (B, Hkv, N, D) and values (B, Hkv, N, Dv); of those where `key_mask` (B, N) is False, nothing."""
        checks.keys(key, value, key_mask, self._recent)
        total, recent, _ = self._extended(self._tokens(key, value, key_mask))
        self._go_on(total, recent, self._counted(key, key_mask))

    def read(self, query: Tensor) -> Tensor:
        """What queries (B, Hq, N, D) get from all keys so far: (B, Hq, N, Dv), zeros if there are none."""
        checks.queries(query, None, self._recent, self.scale)
        o = self._see(query, self._sum, self._shown(query), None)
        return o.to(self._autocast_dtype() or query.dtype)

    def step(self, query: Tensor, key: Tensor, value: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Decode one token, or a few: add their keys and values; each query sees all up to and with its own.

        (B, Hq, N, D), (B, Hkv, N, D) and (B, Hkv, N, Dv) -> (B, Hq, N, Dv).
        """
        checks.keys(key, value, key_mask, self._recent)
        checks.queries(query, key.shape[2], self._recent, self.scale)
        tokens = self._counted(key, key_mask)
        if query.shape[2] == 1 and self._may_step_in_place(query, key, value, key_mask):
            o = self._step_in_place(query, key, value, key_mask)
            self.tokens = tokens
            return o
        total, recent, early = self._extended(self._tokens(key, value, key_mask), query)
        late = query if early is None else query[:, :, early.shape[2] :]
        o = self._see(late, total, recent, recent.length - late.shape[2])
        self._go_on(total, recent, tokens)
        return (o if early is None else torch.cat((early, o), 2)).to(self._autocast_dtype() or value.dtype)

    def __add__(self, other: "FastmaxState") -> "FastmaxState":
        """The state after the keys of both, in any order: it is a sum."""
        if not isinstance(other, FastmaxState):
            return NotImplemented
        checks.same("to be added", self._describe(), other._describe())
        both = self.clone()
        if other._sum is not None:
            both._sum = other._sum.clone() if both._sum is None else both._sum + other._sum
        total, recent, _ = both._extended(other._shown())
        both._go_on(total, recent, self.tokens + other.tokens)
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
        return state

    @property
    def tensor(self) -> Tensor:
        """The sum over all keys, (B, Hkv, F, Dv + 1), a copy: what `fastmax_attention` takes as `initial_state`."""
        recent = self._shown()
        if recent.length:
            return self._folded(recent)
        return self._zeros() if self._sum is None else self._sum.clone()

    @property
    def nbytes(self) -> int:
        """What it takes at most, which it does from some hundred tokens on."""
        per_head = _numbers(self.head_dim, self.value_dim, self.order)
        return self.batch * self.num_kv_heads * per_head * self.dtype.itemsize

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

        1219 for D = Dv = 64, order 2, all in fp32; 2437 beside a cache in bf16.
        """
        value_dim = head_dim if value_dim is None else value_dim
        state = _numbers(head_dim, value_dim, order) * dtype.itemsize
        return state // ((head_dim + value_dim) * cache_dtype.itemsize) + 1

    def state_dict(self) -> dict[str, Any]:
        """A detached copy of everything, for torch.save and `load_state_dict`. The sum has no rows while it is empty."""
        now = self.detach()
        return {
            "version": file.VERSION,
            "order": self.order,
            "head_dim": self.head_dim,
            "value_dim": self.value_dim,
            "normalize": self.normalize,
            "scale": self.scale.detach().clone() if isinstance(self.scale, Tensor) else self.scale,
            "sum": self._zeros(rows=0) if now._sum is None else now._sum,
            "recent_keys": now._recent.keys,
            "recent_values": now._recent.values,
            "tokens": now.tokens,
        }

    @classmethod
    def from_state_dict(cls, state_dict: dict[str, Any]) -> Self:
        """The inverse of `state_dict`; a copy."""
        entries = file.checked(state_dict)
        head_dim, order, normalize = entries["head_dim"], entries["order"], entries["normalize"]
        checks.options(head_dim, order, normalize)
        total, keys, values, tokens = (
            entries[name].clone() for name in ("sum", "recent_keys", "recent_values", "tokens")
        )
        recent = Recent(keys, values, masked=bool((values[..., -1:] == 0).any()))
        total = total if total.shape[2] else None
        checks.stored(total, recent, tokens, head_dim, order)
        scale = entries["scale"].clone() if isinstance(entries["scale"], Tensor) else entries["scale"]
        return cls.__new__(cls)._set(total, recent, tokens, head_dim, order, scale, normalize)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a copy of that state, on this one's device. Only the batch may differ."""
        state = FastmaxState.from_state_dict(state_dict).to(self.device)
        ours = self._describe()
        checks.same("to be loaded", {**ours, "batch": state.batch}, state._describe())
        self._go_on(state._sum, state._recent, state.tokens)

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
        """For pickle and copy.deepcopy: without spare room."""
        return {**self.__dict__, "_recent": self._recent.copy(), "_room": None}

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in self._describe().items())
        return f"FastmaxState({options}, device={self.device}, nbytes={self.nbytes})"

    def _describe(self) -> dict[str, Any]:
        """What two states must have in common to be added."""
        return {
            "batch": self.batch,
            "num_kv_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "value_dim": self.value_dim,
            "order": self.order,
            "scale": self.scale.tolist() if isinstance(self.scale, Tensor) else self.scale,
            "normalize": self.normalize,
            "dtype": self.dtype,
        }

    def _map(self, f: Callable[[Tensor], Tensor]) -> "FastmaxState":
        """Of the same options, with these tensors, which must be new."""
        recent = self._shown()
        return FastmaxState.__new__(FastmaxState)._set(
            None if self._sum is None else f(self._sum),
            Recent(f(recent.keys), f(recent.values), recent.masked),
            f(self.tokens),
            self.head_dim,
            self.order,
            self.scale,
            self.normalize,
        )

    def _counted(self, key: Tensor, key_mask: Tensor | None) -> Tensor:
        return self.tokens + (key.shape[2] if key_mask is None else key_mask.sum(-1))

    def _go_on(self, total: Tensor | None, recent: Recent, tokens: Tensor) -> None:
        self._sum, self._recent, self._room, self.tokens = total, recent, None, tokens


def _numbers(head_dim: int, value_dim: int, order: int) -> int:
    """How many numbers a state has per head: those of the sum, and of the tokens beside it."""
    total = feature_count(head_dim, order) * (value_dim + 1)
    return total + capacity(head_dim, value_dim, order) * (head_dim + value_dim + 1)
