"""The O(N^2) oracle, in the dtype of its inputs and differentiable to any order, and the attention matrix to look at."""

from itertools import combinations_with_replacement
from math import factorial, prod

import torch
from torch import Tensor

from fastmax import dropout, validation
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
    validation.attention(query, key, key, attn_mask, 0.0, is_causal, order, scale, normalize, enable_gqa)
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
    dropout_mode: str = "quadratic",
) -> Tensor:
    """`fastmax_attention` by its definition, with the N x N matrix in memory: the oracle that backends are tested against.

    From the same state of torch's generator it draws the same dropout.
    """
    lead = validation.attention(query, key, value, attn_mask, dropout_p, is_causal, order, scale, normalize, enable_gqa)
    validation.dropout_mode(dropout_mode)
    masks = None
    if dropout_p:
        seed = dropout.new_seed(query.device)
        key_lead = (*lead[:-1], key.shape[-3]) if enable_gqa else lead
        masks = tuple(
            dropout.multipliers(dropout_mode, dropout_p, seed, side, x_lead, x.shape[-2], x.shape[-1], order)
            for side, (x, x_lead) in enumerate(((query, lead), (key, key_lead)))
        )
    weights = _weights(query, key, attn_mask, is_causal, order, scale, normalize, enable_gqa, None, masks)
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
    masks: tuple[Tensor, ...] | None = None,
) -> Tensor:
    """f(s), (..., Nq or rows, Nk), zero where a key does not count."""
    row = torch.arange(query.shape[-2], device=query.device)
    if rows is not None:
        row = row[torch.as_tensor(rows, dtype=torch.long, device=query.device)]
        query = query[..., row, :]
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key = key.repeat_interleave(groups, -3)
        masks = None if masks is None else (masks[0], masks[1].repeat_interleave(groups, -3))
    if attn_mask is not None:
        key = torch.where(_mask_of_keys(attn_mask), key, 0)  # a padded key may hold NaN
    if normalize:
        query, key = standardize(query), standardize(key)
    scale = default_scale(order, query.shape[-1]) if scale is None else scale
    if isinstance(scale, Tensor) and scale.dim():
        scale = scale[:, None, None]
    dtype = torch.promote_types(query.dtype, key.dtype)
    query, key = (query * scale).to(dtype), key.to(dtype)
    weights = similarity(query @ key.mT, order) if masks is None else _dropped(query, key, order, masks)
    if is_causal:
        weights = torch.where(row[:, None] >= torch.arange(key.shape[-2], device=key.device), weights, 0)
    return weights if attn_mask is None else torch.where(attn_mask, weights, 0)


def _dropped(query: Tensor, key: Tensor, order: int, masks: tuple[Tensor, ...]) -> Tensor:
    """f(s) of what dropout leaves: masks multiply tokens (..., N, 1) or features (..., N, F)."""
    if masks[0].shape[-1] == 1:
        return similarity((query * masks[0]) @ (key * masks[1]).mT, order)
    phi = [_monomials(x, order) * mask for x, mask in zip((query, key), masks, strict=True)]
    return phi[0] @ phi[1].mT


def _monomials(x: Tensor, order: int) -> Tensor:
    """phi by its definition, (..., N, F)."""
    columns = []
    for degree in range(order + 1):
        for index in combinations_with_replacement(range(x.shape[-1]), degree):
            repeats = prod(factorial(index.count(m)) for m in set(index))
            columns.append(x[..., list(index)].prod(-1) / repeats**0.5)
    return torch.stack(columns, -1)


def _mask_of_keys(attn_mask: Tensor) -> Tensor:
    """(..., 1, Nk) -> (..., Nk, 1)."""
    return attn_mask.unsqueeze(-1) if attn_mask.dim() == 1 else attn_mask[..., :1, :].mT


def _divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Their ratio; zero where no key is left, and no NaN in its gradient either."""
    empty = denominator == 0
    return torch.where(empty, 0, numerator / torch.where(empty, 1, denominator))
