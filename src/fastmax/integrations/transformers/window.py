"""Softmax over a sliding window, for layers that keep it beside layers with Fastmax."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from fastmax.integrations.transformers.cache_layer import FastmaxLayer


def windowed_softmax(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keys: Tensor | None,
    causal: bool,
    scaling: float | None,
    dropout: float,
    window: int,
    cached: FastmaxLayer | None,
) -> Tensor:
    """Attend to the keys less than `window` tokens away, the query's own included; of a cache, to the last tokens only.

    (B, Hq, Nq, D), (B, Hkv, Nk, D or Dv) -> (B, Hq, Nq, Dv). `keys`, (B, Nk), is True where a key counts.
    """
    if cached is not None:
        key, value, keys = cached.extend_window(key, value, keys, window)
    first = key.shape[2] - query.shape[2]  # the queries are those of the last keys
    i = torch.arange(first, key.shape[2], device=query.device)[:, None]
    j = torch.arange(key.shape[2], device=query.device)
    near = (i - j < window) & (j <= i) if causal else (i - j).abs() < window
    mask = near if keys is None else near & keys[:, None, None]
    return scaled_dot_product_attention(query, key, value, mask, dropout, scale=scaling, enable_gqa=True)
