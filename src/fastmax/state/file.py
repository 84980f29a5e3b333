"""A FastmaxState as a dictionary and as a safetensors file: written atomically, checked when read."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastmax._atomic_file import write_whole

VERSION = 1
FORMAT = "fastmax.state"
_OPTIONS = {"version": int, "order": int, "head_dim": int, "value_dim": int, "normalize": bool}
_NAMES = {*_OPTIONS, "scale", "tensor", "tokens"}


def parts(state_dict: dict[str, Any]) -> dict[str, Any]:
    """The arguments of FastmaxState's constructor, from what its `state_dict` returned."""
    if set(state_dict) != _NAMES:
        raise ValueError(f"a state has the entries {', '.join(sorted(_NAMES))}; got {', '.join(sorted(state_dict))}")
    for name, kind in _OPTIONS.items():
        if type(state_dict[name]) is not kind:
            raise ValueError(f"{name} must be of type {kind.__name__}, got {state_dict[name]!r}")
    for name in ("tensor", "tokens"):
        if not isinstance(state_dict[name], Tensor):
            raise ValueError(f"{name} must be a tensor, got {type(state_dict[name]).__name__}")
    if type(state_dict["scale"]) not in (int, float) and not isinstance(state_dict["scale"], Tensor):
        raise ValueError(f"scale must be a number or a tensor, got {state_dict['scale']!r}")
    if state_dict["version"] != VERSION:
        raise ValueError(f"the version must be {VERSION}, got {state_dict['version']}")
    shape = tuple(state_dict["tensor"].shape)
    if shape[-1:] != (state_dict["value_dim"] + 1,):
        raise ValueError(f"tensor must have value_dim + 1 = {state_dict['value_dim'] + 1} columns, got shape {shape}")
    return {name: state_dict[name] for name in _NAMES - {"version", "value_dim"}}


def save(state_dict: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write beside `path`, then rename: whoever is killed meanwhile leaves the old file whole."""
    import safetensors.torch

    tensors = {name: x.contiguous() for name, x in state_dict.items() if isinstance(x, Tensor)}
    metadata = {name: json.dumps(x) for name, x in state_dict.items() if not isinstance(x, Tensor)}
    data = safetensors.torch.save(tensors, {"format": FORMAT, **metadata})
    write_whole(Path(path), data)


def load(path: str | os.PathLike[str], device: torch.device | str) -> dict[str, Any]:
    """What `save` was given. ValueError for a file that is truncated or holds something else."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(os.fspath(path), framework="pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise ValueError(f"its format must be {FORMAT}, got {metadata.get('format')}")
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
    except SafetensorError as error:
        raise ValueError(f"not a whole safetensors file ({error})") from error
    for name, text in metadata.items():
        if name != "format":
            state[name] = json.loads(text)
    return state
