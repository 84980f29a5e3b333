"""FastmaxLayer: the cache of one attention layer, a state of constant size instead of keys and values."""

import warnings
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from fastmax.call import accumulation_dtype
from fastmax.nn import decoding
from fastmax.state import FastmaxState

_LAYER = "_fastmax_layer"
_CHANGED = (
    "this model attends with other keys or values than those that it caches (DeepSeek expands latents, DiffLlama splits the "
    "values), or without Fastmax"
)


def empty_state(query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> FastmaxState:
    """Return a state for tokens like these, with the options of the calls of fastmax_attention."""
    return FastmaxState.empty(
        key.shape[0],
        key.shape[1],
        key.shape[3],
        value.shape[3],
        options["order"],
        scale=options["scale"],
        normalize=options["normalize"],
        dtype=accumulation_dtype(query.dtype, key.dtype, value.dtype),
        device=key.device,
    )


class FastmaxLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """A FastmaxState, made at the first tokens with the options of the module that they belong to.

    A model calls `update` before the attention function, which never sees the cache. So `update` returns the new keys and
    values with a reference to this layer. The attention function finds it there and hands the tokens to the state once,
    together with their mask and their decay.

    A layer that keeps softmax in a window (`configure(windows=...)`) has its last keys and values here instead.

    Some models attend with other tensors than the ones that `update` returned: DeepSeek caches latents and expands them,
    DiffLlama halves the values and attends twice. Such a layer keeps all keys and values, as a DynamicLayer does.

    Attributes:
        state: the sum over all tokens so far; None before the first, in a window, and where all keys are kept.
        grows: all keys and values are kept.
        seen: the number of tokens so far.
    """

    is_compileable = False
    is_croppable = False
    is_sliding = False

    def __init__(self, **_: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.state: FastmaxState | None = None
        self.window_mask: Tensor | None = None
        self.grows = False
        self.seen = 0
        self._pending: tuple[Tensor, Tensor] | None = None

    @staticmethod
    def of(key: Tensor, value: Tensor) -> "FastmaxLayer | None":
        """Return the layer whose `update` returned these keys and values. None if they are whole sequences."""
        layer = getattr(key, _LAYER, None)
        if not isinstance(layer, FastmaxLayer):
            return None
        if layer._pending is None:
            raise RuntimeError(
                "attention was called twice with the same cached keys, which a Fastmax state takes once: this model shares "
                "keys between layers or calls. Use a DynamicCache"
            )
        if key is layer._pending[0] and value is layer._pending[1]:
            return layer
        if layer._has_tokens:
            raise RuntimeError(f"{_CHANGED}, but not at its first tokens. Use a DynamicCache")
        return None

    @property
    def _has_tokens(self) -> bool:
        return self.state is not None or self.keys is not None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:  # noqa: ARG002
        self.start(key_states.device)

    def start(self, device: torch.device) -> None:
        """Mark the layer as in use, on this device."""
        self.device, self.is_initialized = device, True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.keep_untaken()
        self.lazy_initialization(key_states, value_states)
        self.seen += key_states.shape[-2]
        if self.grows:
            assert self.keys is not None
            assert self.values is not None
            self.keys = torch.cat((self.keys, key_states), -2)
            self.values = torch.cat((self.values, value_states), -2)
            return self.keys, self.values
        # views: the caller's own tensors may go elsewhere too
        self._pending = key_states.view_as(key_states), value_states.view_as(value_states)
        setattr(self._pending[0], _LAYER, self)
        return self._pending

    def keep_untaken(self) -> None:
        """Keep the tokens of the last `update` as keys and values, if they never came to Fastmax attention."""
        if self._pending is None:
            return
        if self._has_tokens:
            raise RuntimeError(f"{_CHANGED}, but not at its first tokens. Use a DynamicCache")
        warnings.warn(
            f"{_CHANGED}: its cache keeps all keys and values, and grows as a DynamicCache does", stacklevel=3
        )
        self.keys, self.values = self._pending
        self._pending, self.grows = None, True

    def take(self) -> None:
        """Accept that the attention function has the tokens of the last `update`."""
        assert self._pending is not None
        self._pending = None

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        keys: Tensor | None,
        log_decay: Tensor | None,
        dropout: dict[str, Any],
        options: dict[str, Any],
    ) -> Tensor:
        """Attend causally to all tokens so far. `keys` is the mask of all of them, or of the new ones."""
        self.take()
        if self.state is None:
            self.state = empty_state(query, key, value, options)
        new = None if keys is None else keys[:, None, None, -key.shape[2] :]
        options = {**options, "backend": "auto"}  # a state picks its backends
        return decoding.attend(self.state, query, key, value, new, log_decay, dropout, options)

    def extend_window(
        self, key: Tensor, value: Tensor, keys: Tensor | None, window: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the keys, values and mask that the new tokens may see, oldest first. Keep the last window - 1 of them."""
        self.take()
        new = None if keys is None else keys[:, -key.shape[2] :]
        if self.keys is not None and self.values is not None:
            if new is not None or self.window_mask is not None:
                old = self.keys.new_ones(self.keys.shape[0], self.keys.shape[2], dtype=torch.bool)
                old = old if self.window_mask is None else self.window_mask
                new = key.new_ones(key.shape[0], key.shape[2], dtype=torch.bool) if new is None else new
                new = torch.cat((old, new), 1)
            key, value = torch.cat((self.keys, key), 2), torch.cat((self.values, value), 2)
        first = max(0, key.shape[2] - window + 1)
        self.keys, self.values = key[:, :, first:], value[:, :, first:]
        self.window_mask = None if new is None else new[:, first:]
        return key, value, new

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.seen + query_length, 0

    def get_seq_length(self) -> int:
        return self.seen

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        self.state = self.keys = self.values = self.window_mask = None
        self.seen, self._pending, self.grows, self.is_initialized = 0, None, False, False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.state is not None:
            self.state = self.state.select(indices.to(self.state.device))
        self._map_tokens(lambda x: x.index_select(0, indices.to(x.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.state is not None:
            self.state = self.state.repeat_interleave(repeats)
        self._map_tokens(lambda x: x.repeat_interleave(repeats, 0))

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove:
            raise ValueError(
                "a Fastmax state is a sum over all tokens so far, of which none can be taken out again: assisted decoding "
                "and prompt lookup need a DynamicCache"
            )

    def offload(self) -> None:
        """Move to the CPU, as transformers asks for between two uses."""
        self._move(torch.device("cpu"))

    def prefetch(self) -> None:
        if self.is_initialized:
            self._move(self.device)

    def _move(self, device: torch.device) -> None:
        if self.state is not None and self.state.device != device:
            self.state = self.state.to(device)
        self._map_tokens(lambda x: x.to(device))

    def _map_tokens(self, f: Any) -> None:
        self.keys, self.values, self.window_mask = (
            None if x is None else f(x) for x in (self.keys, self.values, self.window_mask)
        )
        if self._pending is not None:
            self._pending = f(self._pending[0]), f(self._pending[1])
