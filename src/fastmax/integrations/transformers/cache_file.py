"""A FastmaxCache as a safetensors file: the state of a prompt, for every answer to it."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicSlidingWindowLayer

from fastmax import _tensor_file
from fastmax.integrations.transformers.cache_layer import FastmaxLayer
from fastmax.state import FastmaxState

FORMAT, VERSION = "fastmax.cache", 1

Layer = FastmaxLayer | DynamicSlidingWindowLayer


def save(layers: list[Layer], path: str | os.PathLike[str]) -> None:
    """Write the file atomically: a reader finds the old file or the new one, whole."""
    tensors: dict[str, Tensor] = {}
    described = []
    for index, layer in enumerate(layers):
        own, plain = _taken_apart(layer)
        tensors |= {f"{index}.{name}": x for name, x in own.items()}
        described.append(plain)
    metadata = {"format": FORMAT, "version": str(VERSION), "layers": json.dumps(described)}
    _tensor_file.write(Path(path), tensors, metadata)


def load(path: str | os.PathLike[str], device: torch.device | str) -> list[Layer]:
    """Return the layers that were saved. Raise ValueError if the file is not whole or holds something else."""
    metadata, tensors = _tensor_file.read(path, device)
    if metadata.get("format") != FORMAT or metadata.get("version") != str(VERSION):
        raise ValueError(f"{path} does not hold a FastmaxCache of version {VERSION}")
    layers = []
    try:
        for index, plain in enumerate(json.loads(metadata["layers"])):
            prefix = f"{index}."
            own = {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}
            layers.append(_put_together(plain, own))
    except (KeyError, TypeError, json.JSONDecodeError) as error:  # the file was changed after it was written
        raise ValueError(f"{path} does not hold a whole FastmaxCache ({error!r})") from error
    return layers


def _taken_apart(layer: Layer) -> tuple[dict[str, Tensor], dict[str, Any]]:
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
