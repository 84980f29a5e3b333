"""FastmaxCache: what generate() takes as past_key_values, of constant size for layers that run Fastmax."""

from typing import Any

from transformers import PreTrainedConfig
from transformers.cache_utils import Cache, DynamicSlidingWindowLayer, get_layer_types_and_kwargs

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
        super().__init__(layers=[_layer(kind, more) for kind, more in zip(types, options, strict=True)])


def _layer(kind: str, options: dict[str, Any]) -> Any:
    if kind == "full_attention":
        return FastmaxLayer()
    if kind == "sliding_attention":
        return DynamicSlidingWindowLayer(**options)
    raise ValueError(f"FastmaxCache has layers for full and sliding attention, got a layer of type {kind!r}")
