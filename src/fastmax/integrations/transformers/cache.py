"""FastmaxCache: the cache of generate() for Fastmax models, of constant size for layers that run Fastmax."""

from os import PathLike
from typing import Any, Self

import torch
from transformers import PreTrainedConfig
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, Cache, get_layer_types_and_kwargs

from fastmax.integrations.transformers import cache_file
from fastmax.integrations.transformers.cache_layer import FastmaxLayer


class FastmaxCache(Cache):
    """A cache with a state for every layer with full attention, and transformers' own layer for every other one.

        >>> cache = FastmaxCache(model.config)
        >>> tokens = model.generate(**inputs, past_key_values=cache, max_new_tokens=3)
        >>> cache.get_seq_length() == tokens.shape[1] - 1
        True

    Layers of other kinds are those with a sliding window, a convolution or linear attention. Models whose layers read the
    keys of other layers (`num_kv_shared_layers`) have transformers' own layers throughout.

    Args:
        config: the model's. Without it, every layer is taken to have full attention.
    """

    def __init__(self, config: PreTrainedConfig | None = None) -> None:
        if config is None:
            super().__init__(layer_class_to_replicate=FastmaxLayer)
            return
        config = config.get_text_config(decoder=True)
        types, options = get_layer_types_and_kwargs(config)
        kinds: dict[str, Any] = dict(DYNAMIC_LAYER_TYPE_MAPPING)
        if not getattr(config, "num_kv_shared_layers", None):
            kinds["full_attention"] = FastmaxLayer
        super().__init__(layers=[kinds[kind](**more) for kind, more in zip(types, options, strict=False)])

    def save(self, path: str | PathLike[str]) -> None:
        """Save to a safetensors file, atomically: the prompt need not go through the model again.

        Raises:
            ValueError: a layer is neither Fastmax nor softmax in a window.
        """
        layers: Any = self.layers
        cache_file.save(layers, path)

    @classmethod
    def load(cls, path: str | PathLike[str], device: torch.device | str = "cpu") -> Self:
        """Load a file that `save` wrote.

        Raises:
            ValueError: the file is not one of `save`, or not whole.
        """
        cache = cls()
        cache.layers = list(cache_file.load(path, device))
        return cache

    @property
    def nbytes(self) -> int:
        """Return the bytes of all layers, including those with a window."""
        return sum(_nbytes(layer) for layer in self.layers)


def _nbytes(layer: Any) -> int:
    own: int = sum(x.nbytes for x in (getattr(layer, "keys", None), getattr(layer, "values", None)) if x is not None)
    state = getattr(layer, "state", None)
    return own if state is None else own + state.nbytes
