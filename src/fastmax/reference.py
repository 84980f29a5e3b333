"""The O(N^2) oracle, in the dtype of its inputs and differentiable to any order, and the attention matrix to look at."""

import torch
from torch import Tensor

from fastmax import checks
from fastmax.core import default_scale, similarity, standardize


def attention_matrix(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    *,
    order: int = 2,
    scale: float | Tensor | None = None,
    normalize: bool = True,
    enable_gqa: bool = False,
    rows: Tensor | list[int] | None = None,
) -> Tensor:
    """The matrix A of equation [7], (..., Nq, Nk), or only the chosen `rows` of it, in O(rows * Nk).

    Arguments as for `fastmax_attention`. A row whose keys are all masked is zero.
    """
    checks.attention(query, key, key, attn_mask, 0.0, is_causal, order, scale, normalize, enable_gqa)
    weights = _weights(query, key, attn_mask, is_causal, order, scale, normalize, enable_gqa, rows)
    return _divide(weights, weights.sum(-1, keepdim=True))


def reference_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    order: int = 2,
    scale: float | Tensor | None = None,
    normalize: bool = True,
    enable_gqa: bool = False,
) -> Tensor:
    """`fastmax_attention` by its definition, with the N x N matrix in memory: the oracle that backends are tested against."""
    checks.attention(query, key, value, attn_mask, dropout_p, is_causal, order, scale, normalize, enable_gqa)
    checks.no_dropout(dropout_p)
    weights = _weights(query, key, attn_mask, is_causal, order, scale, normalize, enable_gqa, None)
    if enable_gqa:
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    if attn_mask is not None:
        value = torch.where(_mask_of_keys(attn_mask), value, 0)
    dtype = torch.promote_types(weights.dtype, value.dtype)
    return _divide(weights.to(dtype) @ value.to(dtype), weights.sum(-1, keepdim=True))


def _weights(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    order: int,
    scale: float | Tensor | None,
    normalize: bool,
    enable_gqa: bool,
    rows: Tensor | list[int] | None,
) -> Tensor:
    """f(s), (..., Nq or rows, Nk), zero where a key does not count."""
    row = torch.arange(query.shape[-2], device=query.device)
    if rows is not None:
        row = row[torch.as_tensor(rows, dtype=torch.long, device=query.device)]
        query = query[..., row, :]
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    if attn_mask is not None:
        key = torch.where(_mask_of_keys(attn_mask), key, 0)  # a padded key may hold NaN
    if normalize:
        query, key = standardize(query), standardize(key)
    scale = default_scale(order, query.shape[-1]) if scale is None else scale
    if isinstance(scale, Tensor) and scale.dim():
        scale = scale[:, None, None]
    dtype = torch.promote_types(query.dtype, key.dtype)
    weights = similarity((query * scale).to(dtype) @ key.to(dtype).mT, order)
    if is_causal:
        weights = torch.where(row[:, None] >= torch.arange(key.shape[-2], device=key.device), weights, 0)
    return weights if attn_mask is None else torch.where(attn_mask, weights, 0)


def _mask_of_keys(attn_mask: Tensor) -> Tensor:
    """(..., 1, Nk) -> (..., Nk, 1)."""
    return attn_mask.unsqueeze(-1) if attn_mask.dim() == 1 else attn_mask[..., :1, :].mT


def _divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Their ratio; zero where no key is left, and no NaN in its gradient either."""
    empty = denominator == 0
    return torch.where(empty, 0, numerator / torch.where(empty, 1, denominator))
