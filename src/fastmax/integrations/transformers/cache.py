"""FastmaxCache: what generate() takes as past_key_values, of constant size for layers that run Fastmax."""

from os import PathLike
from typing import Any, Self

import torch
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache, DynamicSlidingWindowLayer, get_layer_types_and_kwargs

from fastmax.integrations.transformers import cache_file
from fastmax.integrations.transformers.cache_layer import FastmaxLayer


class FastmaxCache(Cache):
    """A state for every layer with full attention, transformers' own layer for every one with a sliding window.

    Args:
        config: that of the model; without it, every layer is taken to have full attention.
    """

    def __init__(self, config: PreTrainedConfig | None = None) -> None:
        if config is None:
            super().__init__(layer_class_to_replicate=FastmaxLayer)
            return
        types, options = get_layer_types_and_kwargs(config.get_text_config(decoder=True))
        super().__init__(layers=[_layer(kind, more) for kind, more in zip(types, options, strict=False)])

    def save(self, path: str | PathLike[str]) -> None:
        """To a safetensors file, atomically: the prompt that went through the model need not go through it again."""
        layers: Any = self.layers
        cache_file.save(layers, path)

    @classmethod
    def load(cls, path: str | PathLike[str], device: torch.device | str = "cpu") -> Self:
        """From a file that `save` wrote; ValueError if it is not one, or not whole."""
        cache = cls()
        cache.layers = list(cache_file.load(path, device))
        return cache

    @property
    def nbytes(self) -> int:
        """What all layers take, those with a sliding window included."""
        return sum(_nbytes(layer) for layer in self.layers)


def _nbytes(layer: Any) -> int:
    own: int = sum(x.nbytes for x in (layer.keys, layer.values) if x is not None)
    state = getattr(layer, "state", None)
    return own if state is None else own + state.nbytes


def _layer(kind: str, options: dict[str, Any]) -> Any:
    if kind == "full_attention":
        return FastmaxLayer()
    if kind == "sliding_attention":
        return DynamicSlidingWindowLayer(**options)
    raise ValueError(f"FastmaxCache has layers for full and sliding attention, got a layer of type {kind!r}")
