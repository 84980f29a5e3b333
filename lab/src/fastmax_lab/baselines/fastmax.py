"""Fastmax of any order, at the scale of the paper, of a softmax layer or learned, and Fastmax2 of the authors' code."""

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
from fastmax_lab.baselines.interface import Attention, per_key, without_padding

MEMORY = (2.0, 7.0)
"""The first reaches of decays, as in `FastmaxAttention`: on small images these beat no decay by five points."""


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
        scale = self.scale if self.head_scale is None else self.head_scale
        attend = fastmax_attention if self.sequence is None else self.sequence.attend
        o: Tensor = attend(
            q,
            k,
            v,
            per_key(mask),
            order=self.order,
            scale=scale,
            backend=self.backend,
            log_decay=log_decay,
            **_dropout(self),
        )
        return o


class Released(Attention):
    """Fastmax2 as in the authors' released code: q and k are not standardized but divided by their largest norm.

    The largest is that over the tokens of a sequence and head, so with a causal mask the future would decide it. Every
    score is at most 1 in absolute value.
    """

    def __init__(self, *, dropout: float = 0.0, dropout_mode: str = "quadratic") -> None:
        super().__init__()
        validation.dropout_mode(dropout_mode)
        self.dropout = dropout
        self.dropout_mode = dropout_mode

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k = (over_largest_norm(x) for x in without_padding(mask, q, k))
        o: Tensor = fastmax_attention(q, k, v, per_key(mask), order=2, scale=1.0, normalize=False, **_dropout(self))
        return o


def over_largest_norm(x: Tensor) -> Tensor:
    """Divide x (..., N, D) by the largest norm of its N tokens. Zeros stay zeros."""
    largest = x.square().sum(-1, keepdim=True).amax(-2, keepdim=True)
    return x * largest.clamp(min=torch.finfo(x.dtype).tiny).rsqrt()


def _dropout(layer: Fastmax | Released) -> dict[str, Any]:
    """Return the dropout of a call, in training."""
    if not layer.training or layer.dropout == 0:
        return {}
    return {"dropout_p": layer.dropout, "dropout_mode": layer.dropout_mode}
