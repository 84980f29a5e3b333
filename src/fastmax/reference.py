"""The O(N^2) oracle, in the dtype of its inputs and differentiable to any order, and the attention matrix to look at."""

from itertools import combinations_with_replacement
from math import factorial, prod

import torch
from torch import Tensor
from torch.nn.functional import pad

from fastmax import dropout, validation
from fastmax.call import Inputs, Options, normalization, plain_number
from fastmax.core import default_scale, normalized, similarity


def attention_matrix(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    *,
    order: int = 2,
    scale: float | Tensor | None = None,
    normalize: bool | str = True,
    log_decay: Tensor | None = None,
    enable_gqa: bool = False,
    rows: Tensor | list[int] | None = None,
) -> Tensor:
    """Return the matrix A of equation [7], (..., Nq, Nk), or only the chosen `rows` of it, in O(rows * Nk).

    A row whose keys are all masked is zero.

        >>> q, k = torch.randn(1, 2, 6, 4), torch.randn(1, 2, 6, 4)
        >>> attention_matrix(q, k, is_causal=True, rows=[0, 5]).shape
        torch.Size([1, 2, 2, 6])

    Args:
        query: (..., Hq, Nq, D).
        key: (..., Hkv, Nk, D).
        rows: indices of the queries to make rows for; default all of them.

    The other arguments are those of `fastmax_attention`. The default scale is the function's, not that of a layer, which
    returns its matrix with `need_weights=True`.

    Returns:
        (..., Hq, Nq, Nk), or the chosen rows.
    """
    options = Options(
        order=order, is_causal=is_causal, normalize=normalization(normalize), scale=plain_number(scale),
        enable_gqa=enable_gqa,
    )  # fmt: skip
    validation.attention(Inputs(query, key, key, attn_mask, scale, log_decay), options)
    weights = _weights(query, key, attn_mask, scale, log_decay, options, rows)
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
    normalize: bool | str = True,
    log_decay: Tensor | None = None,
    enable_gqa: bool = False,
    dropout_mode: str = "quadratic",
) -> Tensor:
    """Compute `fastmax_attention` by its definition, with the N x N matrix in memory, as the oracle for backends.

        >>> q, k, v = (torch.randn(1, 2, 6, 4) for _ in range(3))
        >>> torch.allclose(reference_attention(q, k, v), fastmax_attention(q, k, v), atol=1e-5)
        True

    From the same state of torch's generator it draws the same dropout.
    """
    options = Options(
        order=order, is_causal=is_causal, normalize=normalization(normalize), scale=plain_number(scale),
        enable_gqa=enable_gqa, dropout_p=dropout_p, dropout_mode=dropout_mode,
    )  # fmt: skip
    found = validation.attention(Inputs(query, key, value, attn_mask, scale, log_decay), options)
    lead, key_lead = (*found.batch, *found.heads), (*found.batch, *found.key_heads)
    masks = None
    if dropout_p:
        seed = dropout.new_seed(query.device)
        masks = tuple(
            dropout.multipliers(dropout_mode, dropout_p, seed, side, x_lead, x.shape[-2], x.shape[-1], order)
            for side, (x, x_lead) in enumerate(((query, lead), (key, key_lead)))
        )
    weights = _weights(query, key, attn_mask, scale, log_decay, options, None, masks)
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
    scale: float | Tensor | None,
    log_decay: Tensor | None,
    options: Options,
    rows: Tensor | list[int] | None,
    masks: tuple[Tensor, ...] | None = None,
) -> Tensor:
    """Return f(s) with decay, (..., Nq or rows, Nk), zero where a key does not count."""
    order = options.order
    row = torch.arange(query.shape[-2], device=query.device)
    if rows is not None:
        row = row[torch.as_tensor(rows, dtype=torch.long, device=query.device)]
        query = query[..., row, :]
    groups = query.shape[-3] // key.shape[-3] if options.enable_gqa else 1
    if groups != 1:
        key = key.repeat_interleave(groups, -3)
        masks = None if masks is None else (masks[0], masks[1].repeat_interleave(groups, -3))
    if attn_mask is not None:
        key = torch.where(_mask_of_keys(attn_mask), key, 0)  # a padded key may hold NaN
    query, key = normalized(query, options.normalize), normalized(key, options.normalize)
    scale = default_scale(order, query.shape[-1]) if scale is None else scale
    if isinstance(scale, Tensor) and scale.dim():
        scale = scale[:, None, None]
    dtype = torch.promote_types(query.dtype, key.dtype)
    query, key = (query * scale).to(dtype), key.to(dtype)
    weights = similarity(query @ key.mT, order) if masks is None else _dropped(query, key, order, masks)
    if log_decay is not None:
        if groups != 1 and log_decay.dim() > 1 and log_decay.shape[-2] != 1:
            log_decay = log_decay.repeat_interleave(groups, -2)
        weights = weights * _decay(log_decay, attn_mask, row, key.shape[-2]).to(weights.dtype)
    if options.is_causal:
        weights = torch.where(row[:, None] >= torch.arange(key.shape[-2], device=key.device), weights, 0)
    return weights if attn_mask is None else torch.where(attn_mask, weights, 0)


def _decay(log_decay: Tensor, attn_mask: Tensor | None, row: Tensor, tokens: int) -> Tensor:
    """Return the factors of the decays between queries and keys, (..., rows, N), in fp64; a hidden key decays nothing."""
    log_decay = log_decay.double().expand(*log_decay.shape[:-1], tokens)
    if attn_mask is not None:
        log_decay = torch.where(_mask_of_keys(attn_mask).squeeze(-1), log_decay, 0)
    return decay_between(log_decay.exp(), row)


def decay_between(factors: Tensor, row: Tensor) -> Tensor:
    """Multiply the factors of all tokens after the earlier of query i and key j, up to the later: (..., N) -> (..., rows, N).

    Slow, and right for decays of any strength: no difference of sums is taken, so none can lose what a factor has.
    """
    after_query = torch.arange(factors.shape[-1], device=row.device) > row[:, None]
    factors = factors.unsqueeze(-2)
    up_to_key = torch.where(after_query, factors, 1).cumprod(-1)  # of keys j > i: the tokens i + 1 .. j
    up_to_query = torch.where(after_query, 1, factors)  # of keys j < i: the tokens j + 1 .. i
    up_to_query = pad(up_to_query, (0, 1), value=1.0)[..., 1:].flip(-1).cumprod(-1).flip(-1)
    return up_to_key * up_to_query


def _dropped(query: Tensor, key: Tensor, order: int, masks: tuple[Tensor, ...]) -> Tensor:
    """Return f(s) of what dropout leaves: masks multiply tokens (..., N, 1) or features (..., N, F)."""
    if masks[0].shape[-1] == 1:
        return similarity((query * masks[0]) @ (key * masks[1]).mT, order)
    phi = [_monomials(x, order) * mask for x, mask in zip((query, key), masks, strict=True)]
    return phi[0] @ phi[1].mT


def _monomials(x: Tensor, order: int) -> Tensor:
    """Return phi by its definition, (..., N, F)."""
    blocks = []
    for degree in range(order + 1):
        indices = list(combinations_with_replacement(range(x.shape[-1]), degree))
        repeats = [prod(factorial(index.count(m)) for m in set(index)) for index in indices]
        block = torch.tensor(repeats, device=x.device).to(x.dtype).rsqrt().expand(*x.shape[:-1], -1)
        for channels in zip(*indices, strict=True):  # the first factor of every monomial, then the second
            block = block * x[..., list(channels)]
        blocks.append(block)
    return torch.cat(blocks, -1)


def _mask_of_keys(attn_mask: Tensor) -> Tensor:
    """Reshape (..., 1, Nk) to (..., Nk, 1)."""
    return attn_mask.unsqueeze(-1) if attn_mask.dim() == 1 else attn_mask[..., :1, :].mT


def _divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return f / g; zero without keys, and no NaN in its gradient either."""
    empty = denominator == 0
    return torch.where(empty, 0, numerator / torch.where(empty, 1, denominator))
