"""Performer (Choromanski et al. 2021): FAVOR+, positive orthogonal random features that estimate the softmax kernel."""

from math import log

import torch
from torch import Tensor

from fastmax_lab.baselines.interface import Attention, without_padding
from fastmax_lab.baselines.linear import kernel_attention

STABILIZER = 1e-6
"""Added to every feature, so that no query is without a key: sizes are at most 1."""


class Performer(Attention):
    """O(N). The features are drawn once and kept in a buffer, `projection`; there is no dropout of weights, as in Linear."""

    projection: Tensor

    def __init__(self, *, head_dim: int, num_features: int = 128) -> None:
        super().__init__()
        self.register_buffer("projection", orthogonal_gaussian(num_features, head_dim))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        k, v = without_padding(mask, k, v)
        log_q, log_k = (log_features(x, self.projection.to(x.dtype)) for x in (q, k))
        if mask is not None:
            log_k = log_k.masked_fill(~mask[:, None, :, None], -torch.inf)
        # Both shifts cancel in the division: per query, and one for all keys of a head.
        phi_q = (log_q - log_q.amax(-1, keepdim=True)).exp() + STABILIZER
        highest = log_k.amax((-2, -1), keepdim=True)
        phi_k = (log_k - highest.masked_fill(highest == -torch.inf, 0)).exp() + STABILIZER
        (phi_k,) = without_padding(mask, phi_k)
        return kernel_attention(phi_q, phi_k, v)


def log_features(x: Tensor, projection: Tensor) -> Tensor:
    """Return logarithms of features, (..., N, D) -> (..., N, F): phi(q) . phi(k) estimates exp(q . k / sqrt(D)).

    Without bias, by lemma 1 of the paper: exp(x . y) = E[exp(w . x - |x|^2 / 2) exp(w . y - |y|^2 / 2)] for w ~ N(0, I).
    """
    features, head_dim = projection.shape
    x = x / head_dim**0.25
    return x @ projection.mT - x.square().sum(-1, keepdim=True) / 2 - log(features) / 2


def orthogonal_gaussian(rows: int, columns: int) -> Tensor:
    """Draw rows that are each N(0, I), and orthogonal within blocks of `columns`."""
    blocks = []
    for start in range(0, rows, columns):
        q, r = torch.linalg.qr(torch.randn(columns, columns))
        q = q * r.diagonal().sign()  # else the rotation is not uniform
        blocks.append(q.mT[: rows - start])
    lengths = torch.randn(rows, columns).square().sum(-1, keepdim=True).sqrt()
    return torch.cat(blocks) * lengths
