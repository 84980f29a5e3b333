"""Softmax attention twice: PyTorch's fused kernel, and the plain formula that the paper calls vanilla."""

from math import sqrt

import torch
from torch import Tensor
from torch.nn.functional import dropout, scaled_dot_product_attention

from fastmax.core import normalized
from fastmax.nn import ForgetGate
from fastmax_lab.baselines.interface import Attention, per_key, without_padding


class Softmax(Attention):
    """F.scaled_dot_product_attention in its fastest form on the device.

    Args:
        standardized: whether queries and keys are standardized, as Fastmax has them.
        gate: of the decays that weights fade by, in both directions, as in Fastmax.
    """

    def __init__(self, *, dropout: float = 0.0, standardized: bool = False, gate: ForgetGate | None = None) -> None:
        super().__init__()
        self.dropout = dropout
        self.standardized = standardized
        self.gate = gate

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, log_decay: Tensor | None = None
    ) -> Tensor:
        if self.standardized:
            q, k = normalized(q, "standardize"), normalized(k, "standardize")
        return fused_attention(q, k, v, mask, self.dropout if self.training else 0.0, log_decay)


class Vanilla(Attention):
    """softmax(q k^T / sqrt(D)) v with the N x N matrix in memory."""

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        k, v = without_padding(mask, k, v)
        scores = (q / sqrt(q.shape[-1])) @ k.mT
        if mask is not None:
            # the most negative number, not infinity: a sequence of padding alone then gives an average of zeros, not NaN
            scores = scores.masked_fill(~mask[:, None, None, :], torch.finfo(scores.dtype).min)
        return dropout(scores.softmax(-1), self.dropout, self.training) @ v


def fused_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float, log_decay: Tensor | None = None
) -> Tensor:
    """Compute softmax attention of any number of queries by the fused kernel; zeros where every key is padding."""
    k, v = without_padding(mask, k, v)
    return scaled_dot_product_attention(q, k, v, _bias(q, per_key(mask), log_decay), dropout_p)


def _bias(q: Tensor, mask: Tensor | None, log_decay: Tensor | None) -> Tensor | None:
    """Return the mask or, with decays, the bias of the scores: -|c_i - c_j| of their sums c."""
    if log_decay is None:
        return mask
    c = log_decay.expand(*log_decay.shape[:-1], q.shape[-2]).cumsum(-1)
    bias = -(c.unsqueeze(-1) - c.unsqueeze(-2)).abs().to(q.dtype)
    return bias if mask is None else bias.masked_fill(~mask, -torch.inf)
