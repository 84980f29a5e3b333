"""The checks of a FastmaxState: each error says what was expected and what came."""

import sys
from typing import Any

import torch
from torch import Tensor

from fastmax.core import MAX_ORDER
from fastmax.features import feature_count
from fastmax.state.recent import Recent


def options(head_dim: int, order: int | None, normalize: bool | str | None) -> None:
    """Check the options of a state, each None until the first call sets it."""
    numbers = [("head_dim", head_dim, None)] + ([] if order is None else [("order", order, MAX_ORDER)])
    for name, number, most in numbers:
        if not isinstance(number, int) or isinstance(number, bool):
            raise TypeError(f"{name} must be an int, got {number!r}")
        if number < 1 or (most is not None and number > most):
            raise ValueError(f"{name} must be at least 1{'' if most is None else f' and at most {most}'}, got {number}")
    if normalize is not None and not isinstance(normalize, bool) and normalize != "rms":
        kind = ValueError if isinstance(normalize, str) else TypeError
        raise kind(f'normalize must be True, False or "rms", got {normalize!r}')


def sizes(batch: int, num_kv_heads: int, value_dim: int, dtype: torch.dtype) -> None:
    """Check the sizes and the dtype of a state."""
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"a state must be float32 or float64, the dtypes that sums are taken in, got {dtype}")
    for name, number, least in (("batch", batch, 0), ("num_kv_heads", num_kv_heads, 1), ("value_dim", value_dim, 1)):
        if number < least:
            raise ValueError(f"{name} must be at least {least}, got {number}")


def total(tensor: Tensor, head_dim: int, order: int) -> None:
    """Check the shape of a sum over keys."""
    features = feature_count(head_dim, order)
    if tensor.dim() != 4 or tensor.shape[2] != features or tensor.shape[3] < 2:
        raise ValueError(
            f"a state must be of shape (B, Hkv, F, Dv + 1) with F = {features} for order {order} at D = {head_dim}, "
            f"got {tuple(tensor.shape)}"
        )


def tokens(count: Tensor, batch: int, device: torch.device) -> None:
    """Check the number of keys of every batch element."""
    if tuple(count.shape) != (batch,) or count.dtype != torch.int64:
        raise ValueError(f"tokens must be int64 of shape ({batch},), got {count.dtype} of shape {tuple(count.shape)}")
    if count.device != device:
        raise ValueError(f"a state and its tokens must be on one device, got {device} and {count.device}")


def decay_total(total: Tensor, batch: int, heads: int, device: torch.device) -> None:
    """Check the total of log_decay of a sum."""
    if tuple(total.shape) != (batch, heads) or not total.is_floating_point() or total.device != device:
        raise ValueError(
            f"log_decay must be one total per batch element and key head, floating-point, of shape {(batch, heads)}, on "
            f"{device}; got {total.dtype} of shape {tuple(total.shape)} on {total.device}"
        )
    if not bool(((total <= 0) & (total > -torch.inf)).all()):
        raise ValueError("log_decay must be finite and at most 0")


def key_mask(attn_mask: Tensor, key: Tensor) -> Tensor:
    """Return a mask that `fastmax_attention` accepts as (B, N)."""
    mask = attn_mask[..., 0, :] if attn_mask.dim() > 1 else attn_mask
    if mask.dim() > 1 and mask.shape[-2] != 1:
        raise ValueError(f"with a state, attn_mask must hide a key from all heads, got shape {tuple(attn_mask.shape)}")
    mask = mask[..., 0, :] if mask.dim() > 1 else mask
    return mask.expand(key.shape[0], key.shape[2])


def keys(
    key: Tensor,
    value: Tensor,
    key_mask: Tensor | None,
    log_decay: Tensor | None,
    recent: Recent,
    decays: bool | None,
) -> None:
    """Check new tokens. `decays` is that of the tokens so far, None if there are none."""
    batch, heads, _, head_dim = recent.keys.shape
    _like("key", key, (batch, heads, None, head_dim), recent.keys)
    _like("value", value, (batch, heads, key.shape[2], recent.values.shape[3] - 1), recent.keys)
    padding(key_mask, (batch, key.shape[2]))
    if key.shape[2] and decays is not None and decays != (log_decay is not None):
        ours, theirs = ("a", "none") if decays else ("no", "one")
        raise ValueError(
            f"the tokens of this state have {ours} log_decay, these tokens have {theirs}: all decay or none"
        )
    if log_decay is None:
        return
    expected = key.shape[:3]
    fits = log_decay.dim() <= 3 and all(
        have in (1, want) for have, want in zip(log_decay.shape[::-1], expected[::-1], strict=False)
    )
    if not fits or not log_decay.is_floating_point():
        raise ValueError(
            f"log_decay must be floating-point and broadcast to (B, key heads, N) = {tuple(expected)}, "
            f"got {log_decay.dtype} of shape {tuple(log_decay.shape)}"
        )
    if log_decay.device != key.device:
        raise ValueError(f"log_decay must be on {key.device} as the state is, got {log_decay.device}")


def queries(query: Tensor, count: int | None, recent: Recent, scale: float | Tensor) -> None:
    """Check queries, `count` of them if they come with keys."""
    batch, heads, _, head_dim = recent.keys.shape
    _like("query", query, (batch, None, count, head_dim), recent.keys)
    if query.shape[1] % heads:
        raise ValueError(f"query heads must be a multiple of the {heads} of the state, got {query.shape[1]}")
    if isinstance(scale, Tensor) and scale.dim() == 1 and scale.shape[0] != query.shape[1]:
        raise ValueError(f"query heads must be the {scale.shape[0]} that scale has values for, got {query.shape[1]}")


def same(purpose: str, expected: dict[str, Any], got: dict[str, Any]) -> None:
    """Refuse two descriptions of states that differ. None stands for an option that is not set yet, and fits all."""
    known = [name for name in expected if expected[name] is not None and got[name] is not None]
    differ = [name for name in known if expected[name] != got[name]]
    if differ:
        ours, theirs = (", ".join(f"{name}={x[name]}" for name in differ) for x in (expected, got))
        raise ValueError(f"states must agree {purpose}: expected {ours}, got {theirs}")


def kind(scale: float | Tensor | None) -> float | str | None:
    """Return a scale to compare, of a tensor its shape: its values may be learned."""
    return f"tensor of shape {tuple(scale.shape)}" if isinstance(scale, Tensor) else scale


def scale(value: float | Tensor | None, num_kv_heads: int) -> None:
    """Check a scale, None if it is not set yet."""
    if isinstance(value, Tensor):
        if value.dim() > 1 or not value.is_floating_point():
            raise ValueError(
                f"scale must be floating-point, one value or one per query head, got {value.dtype} {tuple(value.shape)}"
            )
        if value.dim() == 1 and (value.shape[0] == 0 or value.shape[0] % num_kv_heads):
            raise ValueError(
                f"scale must have one value per query head, a multiple of the {num_kv_heads} key heads, "
                f"got {value.shape[0]}"
            )
    elif value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise TypeError(f"scale must be a number, a tensor or None, got {value!r}")
    elif value is not None and not abs(value) <= sys.float_info.max:  # an int may be too large to become a float
        raise ValueError(f"scale must be finite, got {value}")


def padding(key_mask: Tensor | None, shape: tuple[int, int]) -> None:
    """Check a mask of new keys, (B, N)."""
    if key_mask is not None and (key_mask.dtype != torch.bool or tuple(key_mask.shape) != shape):
        raise ValueError(
            f"key_mask must be boolean, True where a key counts, of shape {shape}, "
            f"got {key_mask.dtype} of shape {tuple(key_mask.shape)}"
        )


def _like(name: str, x: Tensor, shape: tuple[int | None, ...], state: Tensor) -> None:
    """Check shape, dtype and device."""
    if x.dtype == torch.float64 and state.dtype != torch.float64:
        raise ValueError(
            f"{name} is float64, so the state must be created with dtype=torch.float64; it is {state.dtype}"
        )
    fits(name, x, shape, state.device)


def fits(name: str, x: Tensor, shape: tuple[int | None, ...], device: torch.device) -> None:
    """Check the shape and the device of new tokens. A size of None stands for any."""
    if x.dim() != len(shape) or any(want not in (None, have) for want, have in zip(shape, x.shape, strict=True)):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} must be of shape (B, heads, N, D) = ({wanted}), got {tuple(x.shape)}")
    if x.device != device:
        raise ValueError(f"{name} must be on {device} as the state is, got {x.device}")
