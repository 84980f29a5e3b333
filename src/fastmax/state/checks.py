"""What a FastmaxState accepts: each refusal says what was expected and what came."""

from math import isfinite
from typing import Any

import torch
from torch import Tensor

from fastmax.core import MAX_ORDER
from fastmax.features import feature_count


def parts(
    tensor: Tensor, tokens: Tensor, head_dim: int, order: int, scale: float | Tensor | None, normalize: bool
) -> None:
    """The parts of a state: they may come from a file, so nothing is taken for granted."""
    for name, number, most in (("order", order, MAX_ORDER), ("head_dim", head_dim, None)):
        if not isinstance(number, int) or isinstance(number, bool):
            raise TypeError(f"{name} must be an int, got {number!r}")
        if number < 1 or (most is not None and number > most):
            raise ValueError(f"{name} must be at least 1{'' if most is None else f' and at most {most}'}, got {number}")
    if not isinstance(normalize, bool):
        raise TypeError(f"normalize must be True or False, got {normalize!r}")
    if tensor.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"a state must be float32 or float64, the dtypes that sums are taken in, got {tensor.dtype}")
    features = feature_count(head_dim, order)
    if tensor.dim() != 4 or tensor.shape[2] != features or tensor.shape[3] < 2:
        raise ValueError(
            f"a state must be of shape (B, Hkv, F, Dv + 1) with F = {features} for order {order} at D = {head_dim}, "
            f"got {tuple(tensor.shape)}"
        )
    if tuple(tokens.shape) != tensor.shape[:1] or tokens.dtype != torch.int64:
        raise ValueError(
            f"tokens must be int64 of shape ({tensor.shape[0]},), got {tokens.dtype} of shape {tuple(tokens.shape)}"
        )
    if tensor.device != tokens.device:
        raise ValueError(f"a state and its tokens must be on one device, got {tensor.device} and {tokens.device}")
    _scale(scale, tensor)


def keys(key: Tensor, value: Tensor, key_mask: Tensor | None, state: Tensor, head_dim: int) -> None:
    batch, heads, _, columns = state.shape
    _like("key", key, (batch, heads, None, head_dim), state)
    _like("value", value, (batch, heads, key.shape[2], columns - 1), state)
    if key_mask is not None and (key_mask.dtype != torch.bool or tuple(key_mask.shape) != (batch, key.shape[2])):
        raise ValueError(
            f"key_mask must be boolean, True where a key counts, of shape {(batch, key.shape[2])}, "
            f"got {key_mask.dtype} of shape {tuple(key_mask.shape)}"
        )


def queries(query: Tensor, tokens: int | None, state: Tensor, head_dim: int) -> None:
    _like("query", query, (state.shape[0], None, tokens, head_dim), state)
    if query.shape[1] % state.shape[1]:
        raise ValueError(f"query heads must be a multiple of the {state.shape[1]} of the state, got {query.shape[1]}")


def same(purpose: str, expected: dict[str, Any], got: dict[str, Any]) -> None:
    """Two descriptions of states."""
    differ = [name for name in expected if expected[name] != got[name]]
    if differ:
        ours, theirs = (", ".join(f"{name}={x[name]}" for name in differ) for x in (expected, got))
        raise ValueError(f"states must agree {purpose}: expected {ours}, got {theirs}")


def _scale(scale: float | Tensor | None, tensor: Tensor) -> None:
    if isinstance(scale, Tensor):
        if scale.dim() > 1 or not scale.is_floating_point():
            raise ValueError(
                f"scale must be floating-point, one value or one per query head, got {scale.dtype} {tuple(scale.shape)}"
            )
        if scale.dim() == 1 and (scale.shape[0] == 0 or scale.shape[0] % tensor.shape[1]):
            raise ValueError(
                f"scale must have one value per query head, a multiple of the {tensor.shape[1]} key heads, "
                f"got {scale.shape[0]}"
            )
    elif scale is not None and (isinstance(scale, bool) or not isinstance(scale, int | float)):
        raise TypeError(f"scale must be a number, a tensor or None, got {scale!r}")
    elif scale is not None and not isfinite(scale):
        raise ValueError(f"scale must be finite, got {scale}")


def _like(name: str, x: Tensor, shape: tuple[int | None, ...], state: Tensor) -> None:
    """None stands for any size."""
    if x.dim() != len(shape) or any(want not in (None, have) for want, have in zip(shape, x.shape, strict=True)):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} must be of shape (B, heads, N, D) = ({wanted}), got {tuple(x.shape)}")
    if x.dtype == torch.float64 and state.dtype != torch.float64:
        raise ValueError(
            f"{name} is float64, so the state must be created with dtype=torch.float64; it is {state.dtype}"
        )
