"""Softmax attention over a sliding window, in time and memory linear in the sequence length."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

MIN_BLOCK = 64
"""Fewer queries than this are not worth a block: small matrix products spend their time on overhead."""


def windowed_softmax(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_mask: Tensor | None = None,
    *,
    window: int,
    is_causal: bool = True,
    scale: float | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    """Return the softmax attention of each token over the tokens less than `window` places away, itself included.

    The queries are those of the last Nq tokens. A hidden token takes no place in the window, and its own output is zero.

    Args:
        query: (B, Hq, Nq, D).
        key: (B, Hkv, Nk, D), Nk >= Nq, of the dtype of `query`. Hkv divides Hq.
        value: (B, Hkv, Nk, Dv), of the same dtype.
        key_mask: (B, Nk), True where a token counts; None if all do.
        window: W. If causal, a token sees itself and the W - 1 tokens before it, else W - 1 tokens on both sides.
        is_causal: hide the tokens after the query.
        scale: multiplies q . k; default 1 / sqrt(D).
        dropout_p: the probability to drop a weight, as in `F.scaled_dot_product_attention`.

    Returns:
        (B, Hq, Nq, Dv).
    """
    options: dict[str, Any] = {"window": window, "is_causal": is_causal, "scale": scale, "dropout_p": dropout_p}
    if key_mask is None:
        return _banded(query, key, value, None, **options)
    counts = key_mask[:, key.shape[2] - query.shape[2] :]
    key, value, present = left_padded(key, value, key_mask)
    order = _hidden_first(counts)
    o = _banded(_taken(query, order), key, value, present, **options)
    return torch.where(counts[:, None, :, None], _taken(o, order.argsort(1)), 0)


def left_padded(key: Tensor, value: Tensor, key_mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Move hidden tokens to the front and fill them with zeros, so that those that count are neighbours."""
    order = _hidden_first(key_mask)
    present = key_mask.gather(1, order)
    key, value = (torch.where(present[:, None, :, None], _taken(x, order), 0) for x in (key, value))
    return key, value, present


def _hidden_first(mask: Tensor) -> Tensor:
    return mask.to(torch.uint8).argsort(dim=1, stable=True)


def _taken(x: Tensor, order: Tensor) -> Tensor:
    """Return the tokens of x, (B, H, N, D), in this order, (B, N)."""
    return x.gather(2, order[:, None, :, None].expand_as(x))


def _banded(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    present: Tensor | None,
    *,
    window: int,
    is_causal: bool,
    scale: float | None,
    dropout_p: float,
) -> Tensor:
    """Attend within the band of the window. `present`, (B, Nk), is False for the first tokens of a row at most.

    Queries go in blocks no smaller than the window, so that a block sees its own keys and those of its neighbours. The first
    and the last block have neighbours of other sizes, so each of them is a call.
    """

    def attend(first: int, q: Tensor, k: Tensor, v: Tensor, here: Tensor | None) -> Tensor:
        """Attend from the tokens that begin with token `first` of the keys."""
        grouped = q.shape[1] != k.shape[1]
        if here is None and is_causal and q.shape[2] == k.shape[2] <= window:  # the kernel needs no mask
            return scaled_dot_product_attention(q, k, v, None, dropout_p, True, scale=scale, enable_gqa=grouped)
        mask = _band(first, q.shape[2], k.shape[2], window, is_causal, here, q.device)
        return scaled_dot_product_attention(q, k, v, mask, dropout_p, scale=scale, enable_gqa=grouped)

    batch, _, queries, _ = query.shape
    tokens = key.shape[2]
    past = tokens - queries  # keys before the first query
    block = max(window, MIN_BLOCK)
    sides = 1 if is_causal else 2
    drop = max(0, past - window + 1)  # keys that no query sees
    if drop:
        key, value, past, tokens = key[:, :, drop:], value[:, :, drop:], past - drop, tokens - drop
        present = None if present is None else present[:, drop:]
    inner = tokens // block - sides  # blocks of queries between whole blocks of keys
    if inner < 1:
        return attend(past, query, key, value, present)

    def neighbours(x: Tensor) -> Tensor:
        """Return the keys that each block sees, (B, H, N, D) -> (B * inner, H, (1 + sides) * block, D)."""
        x = torch.unflatten(x[:, :, : (inner + sides) * block], 2, (inner + sides, block))
        return torch.cat([x[:, :, i : i + inner] for i in range(1 + sides)], 3).transpose(1, 2).flatten(0, 1)

    start, end = block, (1 + inner) * block  # of the inner blocks
    far = (sides - 1) * block  # keys after a block that it sees
    q = torch.unflatten(query[:, :, start - past : end - past], 2, (inner, block)).transpose(1, 2).flatten(0, 1)
    here = None if present is None else neighbours(present[:, None, :, None])[:, 0, :, 0]
    middle = attend(block, q, neighbours(key), neighbours(value), here)
    middle = torch.unflatten(middle, 0, (batch, inner)).transpose(1, 2).flatten(2, 3)

    def edge(first: int, last: int, k_first: int, k_last: int) -> Tensor:
        """Return the outputs of the tokens from `first` up to `last`."""
        here = None if present is None else present[:, k_first:k_last]
        k, v = key[:, :, k_first:k_last], value[:, :, k_first:k_last]
        return attend(first - k_first, query[:, :, first - past : last - past], k, v, here)

    parts = [edge(past, start, 0, start + far), middle]
    if end < tokens:
        parts.append(edge(end, tokens, end - block, tokens))
    return torch.cat(parts, 2)


def _band(
    first: int, queries: int, keys: int, window: int, is_causal: bool, present: Tensor | None, device: torch.device
) -> Tensor | None:
    """Return which keys each query sees, (Nq, Nk), or (B, 1, Nq, Nk) if some are not present; None if each sees all.

    A token that is not present sees its own place, because a softmax of nothing would be NaN.
    """
    if (
        present is None
        and queries == 1
        and (keys <= window if is_causal else first < window and keys - first <= window)
    ):
        return None
    i = torch.arange(first, first + queries, device=device)[:, None]
    j = torch.arange(keys, device=device)
    near = (i - j < window) & (j <= i) if is_causal else (i - j).abs() < window
    return near if present is None else near & (present[:, None, None, :] | (i == j))
