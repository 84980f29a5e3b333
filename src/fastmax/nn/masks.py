"""Masks as nn.MultiheadAttention takes them, recognised as what a sum over keys can honour: key padding and causality."""

import torch
from torch import Tensor

from fastmax._torch_private import assert_later

_EXPECTED = (
    "attn_mask must be causal (query i sees the keys j <= i), hide whole keys from every query, or both, "
    "for Fastmax attention is one sum over keys"
)


def recognise(
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    is_causal: bool,
    *,
    batch: int | None,
    num_heads: int,
    queries: int,
    keys: int,
) -> tuple[Tensor | None, bool]:
    """Return which keys count, as a boolean (B, 1 or heads, 1, Nk) or None for all, and if the masks are causal.

    Both masks may be boolean, True where attention is NOT allowed, or floating-point, 0 where it is and -inf (or the
    lowest number of the dtype) where not. With `is_causal` an `attn_mask` is taken at its word to be the causal one, and
    its values are not read. Without it they are: a compiler has to break its graph there.

    Args:
        attn_mask: (Nq, Nk) or (B * heads, Nq, Nk), without B if unbatched.
        key_padding_mask: (B, Nk), or (Nk,) if unbatched.
        batch: B, or None for unbatched input.
    """
    keep = None
    if key_padding_mask is not None:
        expected = (keys,) if batch is None else (batch, keys)
        _check_shape("key_padding_mask", key_padding_mask, [expected])
        keep = _allowed(key_padding_mask, "key_padding_mask", may_assert_later=True).reshape(batch or 1, 1, 1, keys)
    if attn_mask is None:
        return keep, is_causal
    _check_shape("attn_mask", attn_mask, [(queries, keys), ((batch or 1) * num_heads, queries, keys)])
    if is_causal:
        return keep, is_causal
    seen, is_causal = _split(_allowed(attn_mask, "attn_mask"), num_heads)
    if seen is None:
        return keep, is_causal
    return (seen if keep is None else keep & seen), is_causal


def _split(allowed: Tensor, num_heads: int) -> tuple[Tensor | None, bool]:
    """Split (..., Nq, Nk) into the keys that count, (B, 1 or heads, 1, Nk) or None for all, and whether it is causal."""
    queries, keys = allowed.shape[-2:]
    seen = allowed[..., -1:, :]  # by the last query: of the keys that any query sees, those not hidden from all
    is_causal = False
    if not torch.equal(allowed, seen.expand_as(allowed)):
        if not torch.equal(allowed, seen.expand_as(allowed).tril()):
            raise ValueError(
                f"{_EXPECTED}; got a mask of shape {tuple(allowed.shape)} that varies with the query otherwise"
            )
        is_causal = True
        # beyond the last query, causality hides them anyway
        seen = seen | (torch.arange(keys, device=allowed.device) >= queries)
    if bool(seen.all()):
        return None, is_causal
    seen = seen.reshape(1, 1, 1, keys) if allowed.dim() == 2 else seen.reshape(-1, num_heads, 1, keys)
    one_for_all_heads = torch.equal(seen, seen[:, :1].expand_as(seen))
    return (seen[:, :1] if one_for_all_heads else seen), is_causal


def _allowed(mask: Tensor, name: str, *, may_assert_later: bool = False) -> Tensor:
    """Return True where attention is allowed."""
    if mask.dtype == torch.bool:
        return ~mask
    if not mask.is_floating_point():
        raise ValueError(f"{name} must be boolean or floating-point, got {mask.dtype}")
    allowed = mask == 0
    known = (allowed | (mask <= torch.finfo(mask.dtype).min)).all()
    message = (
        f"{name} must be 0 where attention is allowed and -inf where not: Fastmax has no exponential to which other values "
        "could be added"
    )
    if may_assert_later and torch.compiler.is_compiling():
        assert_later(known, message)  # a branch on data would break the graph
    elif not bool(known):
        other = mask[~allowed & (mask > torch.finfo(mask.dtype).min) | mask.isnan()]
        raise ValueError(f"{message}; got {other[0].item()}")
    return allowed


def _check_shape(name: str, mask: Tensor, expected: list[tuple[int, ...]]) -> None:
    if not isinstance(mask, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor or None, got {type(mask).__name__}")
    if tuple(mask.shape) not in expected:
        shapes = " or ".join(map(str, expected))
        raise ValueError(f"{name} must be of shape {shapes}, got {tuple(mask.shape)}")
