"""A FastmaxState as a dictionary, checked when read, and the dictionary of any state as a safetensors file."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastmax import _tensor_file
from fastmax.state import checks
from fastmax.state.contents import Contents, Weighting
from fastmax.state.recent import Recent, capacity

VERSION = 1
_OPTIONS = {"version": int, "order": int}
TENSORS = ("sum", "sum_decay", "recent_keys", "recent_values", "recent_decays", "tokens")
_NAMES = {*_OPTIONS, *TENSORS, "normalize", "scale"}


def entries(contents: Contents, weighting: Weighting) -> dict[str, Any]:
    """Return a detached copy of a state as a dictionary of tensors and plain values."""
    contents = contents.map(lambda x: x.detach().clone())
    total, total_decay, (keys, values, decays, _), tokens = contents
    scale, no_decays = weighting.scale, keys.new_empty(0)
    return {
        "version": VERSION,
        "order": weighting.order,
        "normalize": weighting.normalize,
        "scale": scale.detach().clone() if isinstance(scale, Tensor) else scale,
        "sum": values[:, :, :0].clone() if total is None else total,
        "sum_decay": no_decays if total_decay is None else total_decay,
        "recent_keys": keys,
        "recent_values": values,
        "recent_decays": no_decays if decays is None else decays,
        "tokens": tokens,
    }


def contents(state_dict: dict[str, Any]) -> tuple[Contents, Weighting]:
    """Return a copy of what `entries` was given, after every check that a file needs."""
    found = _checked(state_dict)
    order, normalize, scale = (found[name] for name in ("order", "normalize", "scale"))
    total, decay, keys, values, decays, tokens = (found[name].clone() for name in TENSORS)
    masked = bool((values[..., -1:] == 0).any())
    recent = Recent(keys, values, None if decays.shape == (0,) else decays, masked)
    read = Contents(total if total.shape[2] else None, None if decay.shape == (0,) else decay, recent, tokens)
    _check_contents(read, order, normalize)
    return read, Weighting(order, scale.clone() if isinstance(scale, Tensor) else scale, normalize)


def _checked(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Return a dictionary as `FastmaxState.state_dict` makes it, every entry of its type; else raise ValueError."""
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
    keys, values = state_dict["recent_keys"], state_dict["recent_values"]
    if keys.dim() != 4 or values.dim() != 4 or keys.shape[:3] != values.shape[:3]:
        raise ValueError(
            f"recent_keys and recent_values must be of shapes (B, Hkv, n, D) and (B, Hkv, n, Dv + 1), "
            f"got {tuple(keys.shape)} and {tuple(values.shape)}"
        )
    if state_dict["sum"].dim() != 4:
        raise ValueError(f"sum must have 4 dimensions, got shape {tuple(state_dict['sum'].shape)}")
    return state_dict


def _check_contents(contents: Contents, order: int, normalize: bool | str) -> None:
    """Check every part of contents that come from a file, including values."""
    summed, decay, recent, count = contents
    keys, values, decays, _ = recent
    head_dim = keys.shape[3]
    checks.options(head_dim, order, normalize)
    checks.sizes(keys.shape[0], keys.shape[1], values.shape[3] - 1, keys.dtype)
    if summed is not None:
        checks.total(summed, head_dim, order)
        if summed.shape[:2] != keys.shape[:2] or summed.shape[3] != values.shape[3]:
            raise ValueError(
                f"sum must fit recent_keys {tuple(keys.shape)} and recent_values {tuple(values.shape)}, "
                f"got {tuple(summed.shape)}"
            )
    if decays is not None and decays.shape != keys.shape[:3]:
        raise ValueError(f"recent_decays must be of shape {tuple(keys.shape[:3])}, got {tuple(decays.shape)}")
    if decays is not None and not bool(((decays <= 0) & (decays > -torch.inf)).all()):
        raise ValueError("recent_decays must be finite and at most 0")
    if decay is not None:
        checks.decay_total(decay, keys.shape[0], keys.shape[1], keys.device)
    if (summed is None and decay is not None) or (
        summed is not None and recent.length and (decay is None) != (decays is None)
    ):
        raise ValueError("sum_decay and recent_decays must be those of all tokens, or of none")
    for x in (values, *(x for x in (summed, decays) if x is not None)):
        if x.dtype != keys.dtype or x.device != keys.device:
            raise ValueError(f"all sums must be {keys.dtype} on {keys.device}, got {x.dtype} on {x.device}")
    most = capacity(head_dim, values.shape[3] - 1, order)
    if recent.length > most:
        raise ValueError(f"at most {most} tokens are recent, got {recent.length}")
    checks.tokens(count, keys.shape[0], keys.device)
    ones = values[..., -1]
    if not bool(((ones == 0) | (ones == 1)).all()):
        raise ValueError("the last column of recent_values must be 1 where a key counts and 0 where not")
    if bool((count < ones[:, 0].sum(-1)).any()):
        raise ValueError(f"tokens must be at least as many as are recent, got {count.tolist()}")


def _shown(x: Any) -> str:
    text = repr(x)
    return text if len(text) <= 80 else f"{text[:80]}..."


def save(state_dict: dict[str, Any], path: str | os.PathLike[str], kind: str) -> None:
    """Write the file of a state of this kind atomically."""
    tensors = {name: x for name, x in state_dict.items() if isinstance(x, Tensor)}
    metadata = {name: json.dumps(x) for name, x in state_dict.items() if not isinstance(x, Tensor)}
    _tensor_file.write(Path(path), tensors, {"format": kind, **metadata})


def load(path: str | os.PathLike[str], device: torch.device | str, kind: str) -> dict[str, Any]:
    """Return the dictionary that `save` wrote. Raise ValueError for a file that is truncated or of another kind."""
    state: dict[str, Any]
    metadata, state = _tensor_file.read(path, device)
    if metadata.get("format") != kind:
        raise ValueError(f"its format must be {kind}, got {metadata.get('format')}")
    for name, text in metadata.items():
        if name != "format":
            try:
                state[name] = json.loads(text)
            except RecursionError as error:
                raise ValueError(f"{name} is nested too deeply") from error
    return state
