"""FastmaxCache: the cache of generate() for Fastmax models, of constant size for layers that run Fastmax."""

import json
from os import PathLike
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.cache_utils import (
    DYNAMIC_LAYER_TYPE_MAPPING,
    Cache,
    DynamicSlidingWindowLayer,
    get_layer_types_and_kwargs,
)

from fastmax import _tensor_file
from fastmax.integrations.transformers.cache_layer import FastmaxLayer
from fastmax.state import FastmaxState

FORMAT, VERSION = "fastmax.cache", 1

Layer = FastmaxLayer | DynamicSlidingWindowLayer


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
        """Write a safetensors file, atomically: the prompt need not go through the model again.

        A layer that is neither Fastmax nor softmax in a window is a ValueError.
        """
        tensors: dict[str, Tensor] = {}
        described = []
        for index, layer in enumerate(self.layers):
            own, plain = _taken_apart(layer)
            tensors |= {f"{index}.{name}": x for name, x in own.items()}
            described.append(plain)
        metadata = {"format": FORMAT, "version": str(VERSION), "layers": json.dumps(described)}
        _tensor_file.write(Path(path), tensors, metadata)

    @classmethod
    def load(cls, path: str | PathLike[str], device: torch.device | str = "cpu") -> Self:
        """Return the cache in a file that `save` wrote; ValueError if it holds anything else, or is not whole."""
        metadata, tensors = _tensor_file.read(path, device)
        if metadata.get("format") != FORMAT or metadata.get("version") != str(VERSION):
            raise ValueError(f"{path} does not hold a FastmaxCache of version {VERSION}")
        cache = cls()
        cache.layers = []
        try:
            for index, plain in enumerate(json.loads(metadata["layers"])):
                prefix = f"{index}."
                own = {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}
                cache.layers.append(_put_together(plain, own))
        except (KeyError, TypeError, json.JSONDecodeError) as error:  # the file was changed after it was written
            raise ValueError(f"{path} does not hold a whole FastmaxCache ({error!r})") from error
        return cache

    @property
    def nbytes(self) -> int:
        """Return the bytes of all layers, including those with a window."""
        return sum(_nbytes(layer) for layer in self.layers)


def _nbytes(layer: Any) -> int:
    own: int = sum(x.nbytes for x in (getattr(layer, "keys", None), getattr(layer, "values", None)) if x is not None)
    state = getattr(layer, "state", None)
    return own if state is None else own + state.nbytes


def _taken_apart(layer: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Split a layer into tensors and plain values for JSON."""
    if isinstance(layer, FastmaxLayer):
        layer.keep_untaken()
    elif type(layer) is not DynamicSlidingWindowLayer:
        raise ValueError(f"a cache with layers of type {type(layer).__name__} cannot be saved")
    window = {"keys": layer.keys, "values": layer.values}
    if isinstance(layer, DynamicSlidingWindowLayer):
        plain = {"kind": "sliding", "sliding_window": layer.sliding_window, "seen": layer.cumulative_length}
        return {name: x for name, x in window.items() if x is not None}, plain
    if layer.state is None:
        own = {name: x for name, x in {**window, "mask": layer.window_mask}.items() if x is not None}
        return own, {"kind": "keys" if layer.grows else "window", "seen": layer.seen}
    entries = layer.state.state_dict()
    own = {name: x for name, x in entries.items() if isinstance(x, Tensor)}
    options = {name: x for name, x in entries.items() if not isinstance(x, Tensor)}
    return own, {"kind": "state", "seen": layer.seen, "options": options}


def _put_together(plain: dict[str, Any], own: dict[str, Tensor]) -> Layer:
    layer: Layer
    if plain["kind"] == "sliding":
        layer = DynamicSlidingWindowLayer(plain["sliding_window"])
        layer.cumulative_length = plain["seen"]
    else:
        layer = FastmaxLayer()
        layer.seen = plain["seen"]
        if plain["kind"] == "state":
            layer.state = FastmaxState.from_state_dict({**plain["options"], **own})
            layer.start(layer.state.tokens.device)
            return layer
        layer.window_mask, layer.grows = own.get("mask"), plain["kind"] == "keys"
    if "keys" in own:
        layer.lazy_initialization(own["keys"], own["values"])
        layer.keys, layer.values = own["keys"], own["values"]
    return layer
