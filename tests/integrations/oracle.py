"""Fastmax by its definition in the attention interface, with the masks that transformers makes for softmax.

It shares neither masks nor caches with the integration, so that a mask that either misreads shows.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from fastmax.core import normalized, similarity

NAME = "dense-fastmax"


def _mask(*args: Any, **options: Any) -> Tensor | None:
    """Always there, (B, 1, Nq, Nk), for nothing to be left to conventions."""
    mask: Tensor | None = sdpa_mask(
        *args, **{**options, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    )
    return mask


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    if more.get("sliding_window") is not None:
        o, _ = sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, is_causal, **more)
        return o, None
    config: Any = module.config
    how = "rms" if config.oracle_rotary else "standardize"
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    s = normalized(query, how) @ normalized(key, how).mT / query.shape[-1] ** 0.5
    weights = similarity(s, 2)
    if attention_mask is not None:
        weights = weights * attention_mask
    elif module.is_causal if is_causal is None else is_causal:
        assert query.shape[2] in (1, key.shape[2])
        weights = weights.tril(key.shape[2] - query.shape[2])
    total = weights.sum(-1, keepdim=True)
    o = torch.where(total == 0, 0, weights @ value / torch.where(total == 0, 1, total))
    return o.transpose(1, 2).contiguous(), None


def register_oracle() -> None:
    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, _mask)
