"""Fastmax of any order, with the scale that the paper has, that of a softmax layer, or one learned per head."""

from typing import Any

import torch
from torch import Tensor, nn

from fastmax import validation
from fastmax.api import fastmax_attention
from fastmax.core import default_scale
from fastmax.nn import ForgetGate
from fastmax.nn.options import layer_scale
from fastmax.nn.sharded import SharesSequence
from fastmax_lab.baselines import DECAYS, SCALES
from fastmax_lab.baselines.interface import Attention, per_key

MEMORY = (2.0, 7.0)
"""Where decays start, as in `FastmaxAttention`: on small images these beat no decay by five points."""


class Fastmax(Attention, SharesSequence):
    """`fastmax_attention` as a layer.

    Args:
        order: the degree of the polynomial.
        scale: "paper" is 1 (equation 8), "sqrt" 1 / sqrt(D) as in softmax attention, "learned" one scale per head that
            starts there, a parameter `head_scale`. For odd orders all three start at 1 / D, which keeps the weights positive.
        dropout, dropout_mode: of the factorized terms, in training.
        decay: "none"; "learned", one per head; "gated", one of every token of the layer's input, whose width is `embed_dim`.
            Weights fade in both directions.
    """

    head_scale: nn.Parameter | None

    def __init__(
        self,
        *,
        head_dim: int,
        num_heads: int,
        order: int = 2,
        scale: str = "sqrt",
        dropout: float = 0.0,
        dropout_mode: str = "quadratic",
        backend: str = "auto",
        decay: str = "none",
        embed_dim: int = 0,
    ) -> None:
        super().__init__()
        if decay not in DECAYS:
            raise ValueError(f"decay must be one of {', '.join(DECAYS)}, got {decay!r}")
        if scale not in SCALES:
            raise ValueError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")
        validation.dropout_mode(dropout_mode)
        self.order = order
        self.dropout = dropout
        self.dropout_mode = dropout_mode
        self.backend = backend
        self.scale = (default_scale if scale == "paper" else layer_scale)(order, head_dim)
        start = torch.full((num_heads,), self.scale)
        self.register_parameter("head_scale", nn.Parameter(start) if scale == "learned" else None)

        self.gate = None if decay == "none" else ForgetGate(embed_dim, num_heads, MEMORY, kind=decay)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, log_decay: Tensor | None = None
    ) -> Tensor:
        dropped: dict[str, Any] = {}
        if self.training and self.dropout > 0:
            dropped = {"dropout_p": self.dropout, "dropout_mode": self.dropout_mode}
        scale = self.scale if self.head_scale is None else self.head_scale
        attend = fastmax_attention if self.sequence is None else self.sequence.attend
        o: Tensor = attend(
            q, k, v, per_key(mask), order=self.order, scale=scale, backend=self.backend, log_decay=log_decay, **dropped
        )
        return o
