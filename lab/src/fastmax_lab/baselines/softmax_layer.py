"""Softmax with the projections, rotary positions and forget gate of FastmaxAttention: what a model is compared with."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from fastmax.core import normalized
from fastmax.nn import FastmaxAttention


def gated_softmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    is_causal: bool,
    log_decay: Tensor | None,
    scale: float | Tensor,
    normalize: bool | str,
    enable_gqa: bool,
    dropout_p: float = 0.0,
    **_: Any,
) -> Tensor:
    """Attend with weights exp(s) instead of f(s), in O(N^2); causal, and without a mask."""
    assert mask is None
    assert is_causal
    if normalize:
        q, k = normalized(q, "standardize"), normalized(k, "standardize")
    assert not isinstance(scale, Tensor)
    if log_decay is None:
        return scaled_dot_product_attention(
            q, k, v, dropout_p=dropout_p, is_causal=True, scale=scale, enable_gqa=enable_gqa
        )
    tokens = q.shape[-2]
    c = log_decay.expand(*log_decay.shape[:-1], tokens).cumsum(-1)
    bias = c.unsqueeze(-1) - c.unsqueeze(-2)
    hidden = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(1)
    bias = bias.masked_fill(hidden, -torch.inf).to(q.dtype)
    bias = bias.repeat_interleave(q.shape[-3] // bias.shape[-3], -3)
    return scaled_dot_product_attention(q, k, v, bias, dropout_p=dropout_p, scale=scale, enable_gqa=enable_gqa)


def gated_softmax_matrix(q: Tensor, k: Tensor, mask: Tensor | None, is_causal: bool, **options: Any) -> Tensor:
    """Return the weights: the outputs for values that are unit vectors."""
    units = torch.eye(k.shape[-2], dtype=k.dtype, device=k.device).expand(*k.shape[:-1], -1)
    return gated_softmax(q, k, units, mask, is_causal=is_causal, **options)


class SoftmaxAttention(FastmaxAttention):
    """FastmaxAttention with exp instead of the polynomial; for training, causal."""

    _attend = staticmethod(gated_softmax)
    _matrix = staticmethod(gated_softmax_matrix)
