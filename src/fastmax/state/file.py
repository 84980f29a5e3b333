"""A FastmaxState as a dictionary and as a safetensors file: written atomically, checked when read."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastmax import _tensor_file

VERSION = 3
FORMAT = "fastmax.state"
_OPTIONS = {"version": int, "order": int, "head_dim": int, "value_dim": int}
TENSORS = ("sum", "sum_decay", "recent_keys", "recent_values", "recent_decays", "tokens")
_NAMES = {*_OPTIONS, *TENSORS, "normalize", "scale"}


def checked(state_dict: dict[str, Any]) -> dict[str, Any]:
    """What `FastmaxState.state_dict` returned, with every entry of its type. That they fit together remains to be seen."""
    if set(state_dict) != _NAMES:
        raise ValueError(f"a state has the entries {', '.join(sorted(_NAMES))}; got {', '.join(sorted(state_dict))}")
    for name, kind in _OPTIONS.items():
        if type(state_dict[name]) is not kind:
            raise ValueError(f"{name} must be of type {kind.__name__}, got {_shown(state_dict[name])}")
    if state_dict["version"] != VERSION:
        raise ValueError(f"the version must be {VERSION}, got {_shown(state_dict['version'])}")
    normalize = state_dict["normalize"]
    if type(normalize) is not bool and normalize != "rms":
        raise ValueError(f'normalize must be True, False or "rms", got {_shown(normalize)}')
    for name in TENSORS:
        if not isinstance(state_dict[name], Tensor):
            raise ValueError(f"{name} must be a tensor, got {type(state_dict[name]).__name__}")
    scale = state_dict["scale"]
    if isinstance(scale, Tensor):
        if scale.dtype not in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
            raise ValueError(f"scale must be float64, float32, bfloat16 or float16, got {scale.dtype}")
        if not bool(torch.isfinite(scale).all()):
            raise ValueError(f"scale must be finite, got {scale.tolist()}")
    elif type(scale) not in (int, float):
        raise ValueError(f"scale must be a number or a tensor, got {_shown(scale)}")
    shape = tuple(state_dict["recent_values"].shape)
    if shape[-1:] != (state_dict["value_dim"] + 1,):
        raise ValueError(f"recent_values must have value_dim + 1 columns, got shape {shape}")
    if state_dict["sum"].dim() != 4:
        raise ValueError(f"sum must have 4 dimensions, got shape {tuple(state_dict['sum'].shape)}")
    return state_dict


def _shown(x: Any) -> str:
    text = repr(x)
    return text if len(text) <= 80 else f"{text[:80]}..."


def save(state_dict: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write beside `path`, then rename: whoever is killed meanwhile leaves the old file whole."""
    tensors = {name: x for name, x in state_dict.items() if isinstance(x, Tensor)}
    metadata = {name: json.dumps(x) for name, x in state_dict.items() if not isinstance(x, Tensor)}
    _tensor_file.write(Path(path), tensors, {"format": FORMAT, **metadata})


def load(path: str | os.PathLike[str], device: torch.device | str) -> dict[str, Any]:
    """What `save` was given. ValueError for a file that is truncated or holds something else."""
    state: dict[str, Any]
    metadata, state = _tensor_file.read(path, device)
    if metadata.get("format") != FORMAT:
        raise ValueError(f"its format must be {FORMAT}, got {metadata.get('format')}")
    for name, text in metadata.items():
        if name != "format":
            try:
                state[name] = json.loads(text)
            except RecursionError as error:
                raise ValueError(f"{name} is nested too deeply") from error
    return state
