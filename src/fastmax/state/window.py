"""WindowState: the keys and values that a layer with a softmax window still sees while decoding."""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from fastmax.state import checks
from fastmax.state.batched import BatchedState
from fastmax.window import left_padded, windowed_softmax

_TENSORS = {"keys", "values", "tokens"}
_NUMBERS = {"window", "scale"}


class WindowState(BatchedState):
    """The last W - 1 tokens of each sequence: all that softmax over a window of W tokens needs of the past.

        >>> layer = FastmaxAttention(64, 4, batch_first=True, window=16)
        >>> state = layer.new_state(batch=1)
        >>> layer.step(torch.randn(1, 1, 64), state).shape
        torch.Size([1, 1, 64])

    `layer.new_state` makes it for a layer with a window. `step` and `load_state_dict` change a state. Everything else leaves
    it alone and returns something new, which shares no memory with it. With grad enabled, gradients flow from any output back
    through every step.

    Args:
        keys: (B, Hkv, n, D), the last tokens, oldest first. n <= W - 1.
        values: (B, Hkv, n, Dv).
        tokens: (B,), int64: how many tokens there were. A row of fewer than n has empty places at its beginning.
        window: W. A token sees itself and the W - 1 tokens before it.
        scale: multiplies q . k.
    """

    batch: int
    num_kv_heads: int
    length: int  # of the places that are kept now, at most window - 1
    head_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device
    FORMAT = "fastmax.window_state"

    def __init__(self, keys: Tensor, values: Tensor, tokens: Tensor, *, window: int, scale: float) -> None:
        if keys.dim() != 4 or values.dim() != 4 or keys.shape[:3] != values.shape[:3] or keys.dtype != values.dtype:
            raise ValueError(
                f"keys and values must be of shapes (B, Hkv, n, D) and (B, Hkv, n, Dv) and of one dtype, got "
                f"{keys.dtype} {tuple(keys.shape)} and {values.dtype} {tuple(values.shape)}"
            )
        if type(window) is not int or not keys.shape[2] < window:
            raise ValueError(f"window must be an int above the {keys.shape[2]} tokens that are kept, got {window!r}")
        checks.tokens(tokens, keys.shape[0], keys.device)
        checks.scale(scale, keys.shape[1])
        self.window, self.scale = window, scale
        gaps = keys.shape[2] if keys.shape[2] and bool((tokens < keys.shape[2]).any()) else 0
        self._set(keys.clone(), values.clone(), tokens.clone(), gaps)

    def _set(self, keys: Tensor, values: Tensor, tokens: Tensor, gaps: int) -> None:
        self._keys, self._values, self.tokens = keys, values, tokens
        self.batch, self.num_kv_heads, self.length, self.head_dim = keys.shape
        self.value_dim, self.dtype, self.device = values.shape[3], keys.dtype, keys.device
        self._gaps = gaps  # upper bound of the empty places in any row, known without looking at the tokens

    @classmethod
    def empty(
        cls,
        batch: int,
        num_kv_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        *,
        window: int,
        scale: float,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> Self:
        """Return a state without tokens. For a layer, `layer.new_state(batch)` makes one that fits."""
        sizes = head_dim, head_dim if value_dim is None else value_dim
        keys, values = (torch.empty(batch, num_kv_heads, 0, size, dtype=dtype, device=device) for size in sizes)
        return cls(keys, values, torch.zeros(batch, dtype=torch.int64, device=device), window=window, scale=scale)

    def step(
        self, query: Tensor, key: Tensor, value: Tensor, key_mask: Tensor | None = None, *, dropout_p: float = 0.0
    ) -> Tensor:
        """Add a token, or a few, and return what their queries see: the last `window` tokens up to each, itself included.

        Args:
            query: (B, Hq, N, D).
            key: (B, Hkv, N, D).
            value: (B, Hkv, N, Dv).
            key_mask: (B, N), True where a token counts. A hidden token takes no place, and its output is zero.
            dropout_p: the probability to drop a weight.

        Returns:
            (B, Hq, N, Dv), in the dtype of `value`.
        """
        self._check(query, key, value, key_mask)
        counts = self.tokens + (key.shape[2] if key_mask is None else key_mask.sum(1))
        keys = torch.cat((self._keys.to(key.dtype), key), 2)
        values = torch.cat((self._values.to(value.dtype), value), 2)
        present = None
        if self._gaps or key_mask is not None:
            before = torch.arange(-self.length, 0, device=self.device) >= -self.tokens[:, None]
            new = key_mask if key_mask is not None else before.new_ones(key.shape[0], key.shape[2])
            present = torch.cat((before, new), 1)
        o = windowed_softmax(query, keys, values, present, window=self.window, scale=self.scale, dropout_p=dropout_p)
        if present is not None:
            keys, values, _ = left_padded(keys, values, present)
        first = max(0, keys.shape[2] - self.window + 1)
        keys, values = (x[:, :, first:].to(self.dtype) for x in (keys, values))
        if first > self.window:  # a view would keep all of a long piece alive
            keys, values = keys.clone(), values.clone()
        gaps = self._gaps + (0 if key_mask is None else key.shape[2]) - first
        self._set(keys, values, counts, max(0, gaps))
        return o

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """Return a copy on another device or in another dtype."""
        return self._map(lambda x: x.to(device=device, dtype=dtype if x.is_floating_point() else None, copy=True))

    @property
    def nbytes(self) -> int:
        """Return the upper bound in bytes, reached after W - 1 tokens."""
        per_token = (self.head_dim + self.value_dim) * self.dtype.itemsize
        return self.batch * self.num_kv_heads * (self.window - 1) * per_token

    def state_dict(self) -> dict[str, Any]:
        """Return a detached copy of everything, for torch.save and `load_state_dict`."""
        now = self.detach()
        return {
            "keys": now._keys,
            "values": now._values,
            "tokens": now.tokens,
            "window": self.window,
            "scale": self.scale,
        }

    @classmethod
    def from_state_dict(cls, state_dict: dict[str, Any]) -> Self:
        """Return a state from a copy of what `state_dict` returned."""
        names = _TENSORS | _NUMBERS
        if set(state_dict) != names:
            raise ValueError(
                f"a window state has the entries {', '.join(sorted(names))}; got {', '.join(sorted(state_dict))}"
            )
        wrong = [name for name in sorted(_TENSORS) if not isinstance(state_dict[name], Tensor)]
        if wrong:
            raise ValueError(f"{wrong[0]} must be a tensor, got {type(state_dict[wrong[0]]).__name__}")
        return cls(**state_dict)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a copy of that state, on the device of this one. Only the batch may differ."""
        other = self.from_state_dict(state_dict).to(self.device)
        checks.same("to be loaded", self._describe(), other._describe())
        self._set(other._keys, other._values, other.tokens, other._gaps)

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in self._describe().items())
        return f"WindowState(batch={self.batch}, {options}, device={self.device}, nbytes={self.nbytes})"

    def _describe(self) -> dict[str, Any]:
        """Return what a state must have in common with one that goes on from it."""
        names = ("num_kv_heads", "head_dim", "value_dim", "window", "scale", "dtype")
        return {name: getattr(self, name) for name in names}

    def _map(self, f: Callable[[Tensor], Tensor]) -> Self:
        other = self.__class__.__new__(self.__class__)
        other.window, other.scale = self.window, self.scale
        other._set(f(self._keys), f(self._values), f(self.tokens), self._gaps)
        return other

    def _check(self, query: Tensor, key: Tensor, value: Tensor, key_mask: Tensor | None) -> None:
        """Refuse tokens that are not those of such a state."""
        checks.fits("key", key, (self.batch, self.num_kv_heads, key.shape[-2], self.head_dim), self.device)
        checks.fits("value", value, (self.batch, self.num_kv_heads, key.shape[2], self.value_dim), self.device)
        checks.fits("query", query, (self.batch, None, key.shape[2], self.head_dim), self.device)
        heads = query.shape[1]
        if heads == 0 or heads % self.num_kv_heads:
            raise ValueError(f"query heads must be a multiple of the {self.num_kv_heads} of the state, got {heads}")
        checks.padding(key_mask, (self.batch, key.shape[2]))
