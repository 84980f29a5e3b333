"""FastmaxLayer: the cache of one attention layer, a state of constant size in the place of keys and values."""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from fastmax.call import accumulation_dtype
from fastmax.nn import decoding
from fastmax.state import FastmaxState

_LAYER = "_fastmax_layer"


def empty_state(query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> FastmaxState:
    """For tokens like these, with the options of the calls of fastmax_attention."""
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

    A cache layer is asked to `update` before the attention function is called, which never sees the cache. So `update`
    keeps nothing and returns the new keys with a reference to itself; the attention function finds it there, and the
    tokens go to the state once, together with their mask and their decay.

    A layer that keeps softmax in a window (`configure(window=...)`) has its last keys and values here instead.
    """

    is_compileable = False
    is_croppable = False
    is_sliding = False

    def __init__(self, **_: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.state: FastmaxState | None = None
        self.window_mask: Tensor | None = None
        self.seen = 0
        self._pending = False

    @staticmethod
    def of(key: Tensor) -> "FastmaxLayer | None":
        """The layer whose `update` returned these keys, if that is where they come from."""
        layer = getattr(key, _LAYER, None)
        return layer if isinstance(layer, FastmaxLayer) else None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:  # noqa: ARG002
        self.start(key_states.device)

    def start(self, device: torch.device) -> None:
        """There is something in it, and that is where it is at home."""
        self.device, self.is_initialized = device, True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if self._pending:
            raise RuntimeError(
                "the keys of the last tokens never came to Fastmax attention: this model changes keys after they were cached "
                "(as those with latent caches, DeepSeek's, do), or its attention does not run Fastmax. Use a DynamicCache"
            )
        self.lazy_initialization(key_states, value_states)
        self._pending = True
        self.seen += key_states.shape[-2]
        key_states = key_states.view_as(key_states)  # not the caller's own tensor, which may go elsewhere too
        setattr(key_states, _LAYER, self)
        return key_states, value_states

    def take(self) -> None:
        """The attention function has the tokens of the last `update`; they may come once."""
        if not self._pending:
            raise RuntimeError(
                "the same cached keys came to Fastmax attention twice: this model shares keys between layers. Use a "
                "DynamicCache"
            )
        self._pending = False

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
        """Causal attention over all tokens so far. `keys` is the mask of all of them, or of the new ones."""
        self.take()
        if self.state is None:
            self.state = empty_state(query, key, value, options)
        new = None if keys is None else keys[:, None, None, -key.shape[2] :]
        options = {**options, "backend": "auto"}  # a state picks its backends
        return decoding.attend(self.state, query, key, value, new, log_decay, dropout, options)

    def extend_window(
        self, key: Tensor, value: Tensor, keys: Tensor | None, window: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The keys, values and mask that the new tokens may see, oldest first; the last window - 1 are kept for the next."""
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
        self.seen, self._pending, self.is_initialized = 0, False, False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.state is not None:
            self.state = self.state.select(indices.to(self.state.device))
        self._map_window(lambda x: x.index_select(0, indices.to(x.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.state is not None:
            self.state = self.state.repeat_interleave(repeats)
        self._map_window(lambda x: x.repeat_interleave(repeats, 0))

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove:
            raise ValueError(
                "a Fastmax state is a sum over all tokens so far, of which none can be taken out again: assisted decoding "
                "and prompt lookup need a DynamicCache"
            )

    def offload(self) -> None:
        """To the CPU, as transformers asks for between two uses."""
        self._move(torch.device("cpu"))

    def prefetch(self) -> None:
        if self.is_initialized:
            self._move(self.device)

    def _move(self, device: torch.device) -> None:
        if self.state is not None and self.state.device != device:
            self.state = self.state.to(device)
        self._map_window(lambda x: x.to(device))

    def _map_window(self, f: Any) -> None:
        self.keys, self.values, self.window_mask = (
            None if x is None else f(x) for x in (self.keys, self.values, self.window_mask)
        )
