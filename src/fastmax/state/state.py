"""FastmaxState: the running sum over keys, all that decoding has to remember, of constant size."""

from os import PathLike
from typing import Any, Self

import torch
from torch import Tensor

from fastmax.api import fastmax_attention
from fastmax.backends import native
from fastmax.core import default_scale
from fastmax.features import feature_count
from fastmax.state import checks, file


class FastmaxState:
    """What attention needs of all the keys so far, and how many they were.

    `update`, `step` and `load_state_dict` change a state, by putting a new tensor in the place of `tensor`; everything else
    leaves it alone and returns something new. With grad enabled, gradients flow from any output back through every step.
    With grad disabled nothing is kept, and `step` may overwrite `tensor` where it is: `clone` a state to keep it.

    Memory: `nbytes` = B * Hkv * F * (Dv + 1) * itemsize, F = C(D + order, order). Where that beats a cache of keys and values
    `break_even` tells.

    Attributes:
        tensor: (B, Hkv, F, Dv + 1), fp32 or fp64: the state of `fastmax_attention`.
        tokens: (B,), int64: how many keys were added, those that key_mask hides not counted.
        order, scale, normalize: the options of `fastmax_attention`, fixed at creation.
    """

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
        checks.parts(tensor, tokens, head_dim, order, scale, normalize)
        self.tensor = tensor
        self.tokens = tokens
        self.head_dim = head_dim
        self.order = order
        self.scale = default_scale(order, head_dim) if scale is None else scale
        self.normalize = normalize
        self._shared = True  # with whoever made the tensor, or with a graph that saved it

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
        shape = batch, num_kv_heads, feature_count(head_dim, order), value_dim + 1
        return cls(
            torch.zeros(shape, dtype=dtype, device=device),
            torch.zeros(batch, dtype=torch.int64, device=device),
            head_dim=head_dim,
            order=order,
            scale=scale,
            normalize=normalize,
        )

    def update(self, key: Tensor, value: Tensor, key_mask: Tensor | None = None) -> None:
        """Add keys (B, Hkv, N, D) and values (B, Hkv, N, Dv); of those where `key_mask` (B, N) is False, nothing."""
        checks.keys(key, value, key_mask, self.tensor, self.head_dim)
        nobody = key.new_empty(*key.shape[:2], 0, self.head_dim)
        scale = 1.0 if isinstance(self.scale, Tensor) else self.scale  # of queries, of which there are none
        _, tensor = self._attend(nobody, key, value, key_mask, scale=scale, return_state=True)
        self._advance(tensor, key, key_mask)

    def read(self, query: Tensor) -> Tensor:
        """What queries (B, Hq, N, D) get from all keys so far: (B, Hq, N, Dv), zeros if there are none."""
        checks.queries(query, None, self.tensor, self.head_dim)
        nothing = query.new_empty(self.batch, self.num_kv_heads, 0, max(self.head_dim, self.value_dim))
        o, _ = self._attend(
            query, nothing[..., : self.head_dim], nothing[..., : self.value_dim], None, scale=self.scale
        )
        return o

    def step(self, query: Tensor, key: Tensor, value: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Decode one token, or a few: add their keys and values; each query sees all up to and with its own.

        (B, Hq, N, D), (B, Hkv, N, D) and (B, Hkv, N, Dv) -> (B, Hq, N, Dv).
        """
        checks.keys(key, value, key_mask, self.tensor, self.head_dim)
        checks.queries(query, key.shape[2], self.tensor, self.head_dim)
        if self._may_step_in_place(query, value):
            tensor = self.tensor.clone() if self._shared else self.tensor
            o = native.step(
                query.squeeze(2),
                self._key(key).squeeze(2),
                value.squeeze(2),
                tensor,
                order=self.order,
                scale=1.0 if isinstance(self.scale, Tensor) else self.scale,
                head_scale=self.scale.expand(query.shape[1]) if isinstance(self.scale, Tensor) else None,
                normalize=self.normalize,
                key_mask=key_mask,
            ).unsqueeze(2)
        else:
            o, tensor = self._attend(query, key, value, key_mask, scale=self.scale, is_causal=True, return_state=True)
        self._advance(tensor, key, key_mask)
        return o

    def __add__(self, other: "FastmaxState") -> "FastmaxState":
        """The state after the keys of both, in any order: it is a sum."""
        if not isinstance(other, FastmaxState):
            return NotImplemented
        checks.same("to be added", self._describe(), other._describe())
        return self._with(self.tensor + other.tensor, self.tokens + other.tokens)

    def select(self, index: Tensor) -> "FastmaxState":
        """The batch elements at `index`, (n,): any number of them, in any order, repeated at will."""
        return self._with(self.tensor.index_select(0, index), self.tokens.index_select(0, index))

    def reorder(self, index: Tensor) -> "FastmaxState":
        """`select` of as many as there are: each beam goes on from the state of beam index[i]."""
        if tuple(index.shape) != (self.batch,):
            raise ValueError(
                f"index must have one entry per batch element, shape ({self.batch},), got {tuple(index.shape)}"
            )
        return self.select(index)

    def repeat_interleave(self, repeats: int) -> "FastmaxState":
        """Each batch element `repeats` times in a row, to start a beam search from."""
        return self._with(self.tensor.repeat_interleave(repeats, 0), self.tokens.repeat_interleave(repeats, 0))

    def clone(self) -> "FastmaxState":
        return self._with(self.tensor.clone(), self.tokens.clone())

    def detach(self) -> "FastmaxState":
        """A copy from which no gradient flows back."""
        return self._with(self.tensor.detach().clone(), self.tokens.clone())

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "FastmaxState":
        """A copy on another device or in another dtype, fp32 or fp64."""
        state = self._with(
            self.tensor.to(device=device, dtype=dtype, copy=True), self.tokens.to(device=device, copy=True)
        )
        if isinstance(self.scale, Tensor):
            state.scale = self.scale.to(device=device)
        return state

    @property
    def batch(self) -> int:
        return self.tensor.shape[0]

    @property
    def num_kv_heads(self) -> int:
        return self.tensor.shape[1]

    @property
    def value_dim(self) -> int:
        return self.tensor.shape[3] - 1

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    @property
    def device(self) -> torch.device:
        return self.tensor.device

    @property
    def nbytes(self) -> int:
        return self.tensor.nbytes

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

        1090 for D = Dv = 64, order 2, all in fp32; 2179 beside a cache in bf16.
        """
        value_dim = head_dim if value_dim is None else value_dim
        state = feature_count(head_dim, order) * (value_dim + 1) * dtype.itemsize
        return state // ((head_dim + value_dim) * cache_dtype.itemsize) + 1

    def state_dict(self) -> dict[str, Any]:
        """Everything, detached but not copied, for torch.save and `load_state_dict`."""
        return {
            "version": file.VERSION,
            "order": self.order,
            "head_dim": self.head_dim,
            "value_dim": self.value_dim,
            "normalize": self.normalize,
            "scale": self.scale.detach() if isinstance(self.scale, Tensor) else self.scale,
            "tensor": self.tensor.detach(),
            "tokens": self.tokens,
        }

    @classmethod
    def from_state_dict(cls, state_dict: dict[str, Any]) -> Self:
        """The inverse of `state_dict`."""
        return cls(**file.parts(state_dict))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a copy of that state, on this one's device. Only the batch may differ."""
        state = FastmaxState.from_state_dict(state_dict).to(self.device)
        ours = self._describe()
        checks.same("to be loaded", {**ours, "batch": state.batch}, state._describe())
        self.tensor, self.tokens, self._shared = state.tensor, state.tokens, False

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

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_mask: Tensor | None,
        *,
        scale: float | Tensor,
        is_causal: bool = False,
        return_state: bool = False,
    ) -> tuple[Tensor, Tensor]:
        self._shared = self._shared or torch.is_grad_enabled()
        result = fastmax_attention(
            query,
            self._key(key),
            value,
            None if key_mask is None else key_mask[:, None, None, :],
            is_causal=is_causal,
            order=self.order,
            scale=scale,
            normalize=self.normalize,
            enable_gqa=True,
            initial_state=self.tensor,
            return_state=return_state,
        )
        return result if return_state else (result, self.tensor)

    def _key(self, key: Tensor) -> Tensor:
        """One fp64 input makes the sums fp64."""
        return key.to(self.dtype) if self.dtype == torch.float64 else key

    def _may_step_in_place(self, query: Tensor, value: Tensor) -> bool:
        """For one token, where no gradient can ask for the old state, and no compiler or autocast wants a say."""
        if query.shape[2] != 1 or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return False
        if query.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
            return False
        return native.step_unsupported(query, value, self.tensor, order=self.order) is None

    def _advance(self, tensor: Tensor, key: Tensor, key_mask: Tensor | None) -> None:
        self.tensor = tensor
        self.tokens = self.tokens + (key.shape[2] if key_mask is None else key_mask.sum(-1))
        self._shared = torch.is_grad_enabled()

    def _with(self, tensor: Tensor, tokens: Tensor) -> "FastmaxState":
        """Of the same options, with tensors that are new."""
        state = FastmaxState(
            tensor, tokens, head_dim=self.head_dim, order=self.order, scale=self.scale, normalize=self.normalize
        )
        state._shared = torch.is_grad_enabled()
        return state
