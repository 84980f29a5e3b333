"""Informer (Zhou et al. 2021): ProbSparse, full attention for the few queries that need it, the mean value for the rest."""

from math import ceil, log, sqrt

import torch
from torch import Tensor

from fastmax_lab.baselines.interface import Attention, real_tokens, without_padding
from fastmax_lab.baselines.softmax import fused_attention

EVALUATION_SEED = 0


class Informer(Attention):
    """Algorithm 1 of the paper: a random sample of keys shows which queries are far from uniform attention.

    Of n real tokens, factor * ln n keys are sampled and as many queries are active. In training the sample is drawn from
    torch's generator, in evaluation it is always the same. It depends on positions only, not on the amount of padding.
    """

    def __init__(self, *, max_length: int, factor: float = 5.0, dropout: float = 0.0) -> None:
        super().__init__()
        self.max_length = max_length
        self.factor = factor
        self.dropout = dropout

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        if q.shape[2] > self.max_length:
            raise ValueError(f"made for at most {self.max_length} tokens, got {q.shape[2]}")
        k, v = without_padding(mask, k, v)
        real = real_tokens(mask, q)
        rank = torch.arange(count(self.factor, q.shape[2]), device=q.device)
        counts = (self.factor * real.clamp(min=1).double().log()).ceil().clamp(min=1)
        used = (rank < torch.minimum(counts, real)[:, None])[:, None]  # (B, 1, u): a short sequence uses fewer
        with torch.no_grad():
            chosen = self._spread(q, k, mask, used).sort(dim=-1, descending=True, stable=True).indices[..., : len(rank)]
        rows = chosen.unsqueeze(-1)  # (B, H, u, 1)
        active = fused_attention(q.take_along_dim(rows, 2), k, v, mask, self.dropout if self.training else 0.0)
        mean = v.sum(2, keepdim=True) / real.clamp(min=1)[:, None, None, None]
        active = torch.where(used.unsqueeze(-1), active, mean)
        return mean.expand(v.shape).scatter(2, rows.expand(active.shape), active)

    def _spread(self, q: Tensor, k: Tensor, mask: Tensor | None, used: Tensor) -> Tensor:
        """Return the highest less the mean score over the sampled keys, equation 4, (B, H, N); lowest for padding."""
        keys = k.take_along_dim(self._sample(q, mask, used.shape[-1])[:, None, :, None], 2)
        scores = q @ keys.mT / sqrt(q.shape[-1])
        used = used.unsqueeze(2)
        highest = scores.masked_fill(~used, -torch.inf).amax(-1)
        spread = highest - scores.masked_fill(~used, 0).sum(-1) / used.sum(-1).clamp(min=1)
        return spread if mask is None else spread.masked_fill(~mask[:, None], -torch.inf)

    def _sample(self, q: Tensor, mask: Tensor | None, keys: int) -> Tensor:
        """Return positions in random order, the real ones first, (B, keys)."""
        if self.training:
            order = torch.rand(self.max_length, device=q.device)
        else:
            generator = torch.Generator().manual_seed(EVALUATION_SEED)
            order = torch.rand(self.max_length, generator=generator).to(q.device)
        order = order[: q.shape[2]].expand(q.shape[0], -1)
        if mask is not None:
            order = order.masked_fill(~mask, 2.0)
        return order.sort(dim=-1, stable=True).indices[:, :keys]


def count(factor: float, tokens: int) -> int:
    """Return the number of keys sampled and of active queries: factor * ln n, at least 1, at most n."""
    return min(tokens, max(1, ceil(factor * log(tokens))))
