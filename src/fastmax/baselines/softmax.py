"""Softmax attention twice: PyTorch's fused kernel, and the plain formula that the paper calls vanilla."""

from math import sqrt

import torch
from torch import Tensor
from torch.nn.functional import dropout, scaled_dot_product_attention

from fastmax.baselines.interface import Attention, per_key, without_padding


class Softmax(Attention):
    """F.scaled_dot_product_attention, in whatever form it is fastest on the device."""

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        return fused_attention(q, k, v, mask, self.dropout if self.training else 0.0)


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


def fused_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float) -> Tensor:
    """Softmax attention of any number of queries, by the fused kernel; zeros where every key is padding."""
    k, v = without_padding(mask, k, v)
    return scaled_dot_product_attention(q, k, v, per_key(mask), dropout_p)
