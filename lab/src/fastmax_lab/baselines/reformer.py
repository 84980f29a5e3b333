"""Reformer (Kitaev et al. 2020): attention within buckets of a locality-sensitive hash, queries and keys shared."""

from math import sqrt

import torch
from torch import Tensor
from torch.nn.functional import dropout, normalize, pad

from fastmax_lab.baselines.interface import Attention, without_padding

EVALUATION_SEED = 0
SELF = -1e5
"""The score of a token with itself, which counts only where it is alone in its bucket."""
NOWHERE = -(2**40)


class Reformer(Attention):
    """Section 2 of the paper. Keys are the queries at unit length.

    A round of hashing sorts the tokens by bucket (argmax of [xR, -xR]) and cuts them into chunks; a token attends to the
    tokens of its bucket in its own chunk and the one before. Rounds are joined by their normalizers, and a pair that meets
    in several rounds counts once (the N_ij of the paper). Padding is sorted last, so it fills separate chunks.

    The number of buckets follows from `max_length`, not from a batch. Rotations are drawn from torch's generator in training
    and are always the same in evaluation.
    """

    shares_keys = True

    def __init__(
        self,
        *,
        head_dim: int,
        num_heads: int,
        max_length: int,
        rounds: int = 2,
        chunk: int = 64,
        buckets: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if buckets is None:
            buckets = 1 if max_length <= chunk else 2 * -(-max_length // (2 * chunk))
        if buckets > 1 and buckets % 2:
            raise ValueError(f"buckets must be 1 or even, got {buckets}")
        self.rotations_shape = num_heads, rounds, head_dim, buckets // 2
        self.buckets = buckets
        self.chunk = chunk
        self.dropout = dropout

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: ARG002
        length = q.shape[2]
        q, v, mask = _whole_chunks(q, v, mask, self.chunk)
        q, v = without_padding(mask, q, v)
        with torch.no_grad():
            bucket = self._bucket(q, mask)  # (B, H, R, N)
            order = bucket.sort(dim=-1, stable=True).indices
            undo = order.argsort(-1)
            # Two tokens meet in a round if they share the bucket and the first is in the chunk of the second or the one
            # after: if their codes differ by 0 or 1.
            code = bucket * (q.shape[2] // self.chunk + 2) + undo // self.chunk
        o, normalizer = self._rounds(q, v, code, order)
        o = o.take_along_dim(undo.unsqueeze(-1), 3)
        share = normalizer.gather(3, undo).softmax(2)
        return (o * share.unsqueeze(-1)).sum(2)[:, :, :length]

    def _rounds(self, q: Tensor, v: Tensor, code: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs (B, H, R, N, Dv) and logarithms of normalizers (B, H, R, N), in sorted order."""
        rows = order.unsqueeze(-1)
        x = self._chunks(q.unsqueeze(2).take_along_dim(rows, 3))  # (B, H, R, chunks, chunk, D)
        keys = _with_previous(normalize(x, dim=-1), 0)
        scores = x @ keys.mT / sqrt(q.shape[-1])
        with torch.no_grad():
            meetings = torch.zeros(scores.shape, dtype=torch.int8, device=q.device)
            hidden = torch.empty_like(meetings, dtype=torch.bool)
            for r in range(code.shape[2]):
                codes = self._chunks(code[:, :, r : r + 1].expand_as(order).gather(3, order).unsqueeze(-1))
                apart = codes - _with_previous(codes, NOWHERE).mT
                meetings += ((apart == 0) | (apart == 1)).to(torch.int8)
                hidden[:, :, r] = ((apart < 0) | (apart > 1))[:, :, r]
            position = self._chunks(rows)
            alone = position == _with_previous(position, NOWHERE).mT
        scores = scores.masked_fill(alone, SELF) - meetings.clamp(min=1).to(scores.dtype).log()
        scores = scores.masked_fill(hidden, -torch.inf)
        normalizer = scores.logsumexp(-1, keepdim=True)
        weights = dropout((scores - normalizer).exp(), self.dropout, self.training)
        values = _with_previous(self._chunks(v.unsqueeze(2).take_along_dim(rows, 3)), 0)
        return (weights @ values).flatten(3, 4), normalizer.flatten(3)

    def _bucket(self, q: Tensor, mask: Tensor | None) -> Tensor:
        """Return buckets, (B, H, R, N); padding is alone in the last one."""
        if self.training:
            rotations = torch.randn(self.rotations_shape, device=q.device, dtype=q.dtype)
        else:
            generator = torch.Generator().manual_seed(EVALUATION_SEED)
            rotations = torch.randn(self.rotations_shape, generator=generator).to(q)
        if self.buckets == 1:
            bucket = torch.zeros(*q.shape[:2], rotations.shape[1], q.shape[2], dtype=torch.long, device=q.device)
        else:
            rotated = q.unsqueeze(2) @ rotations
            bucket = torch.cat((rotated, -rotated), -1).argmax(-1)
        return bucket if mask is None else bucket.masked_fill(~mask[:, None, None], self.buckets)

    def _chunks(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:3], -1, self.chunk, x.shape[-1])


def _whole_chunks(q: Tensor, v: Tensor, mask: Tensor | None, chunk: int) -> tuple[Tensor, Tensor, Tensor | None]:
    missing = -q.shape[2] % chunk
    if not missing:
        return q, v, mask
    if mask is None:
        mask = torch.ones(q.shape[0], q.shape[2], dtype=torch.bool, device=q.device)
    return pad(q, (0, 0, 0, missing)), pad(v, (0, 0, 0, missing)), pad(mask, (0, missing))


def _with_previous(x: Tensor, fill: int) -> Tensor:
    """Prepend the chunk before to each chunk, (..., chunks, chunk, D) -> (..., chunks, 2 * chunk, D); first `fill`."""
    before = pad(x, (0, 0, 0, 0, 1, 0), value=fill)[..., :-1, :, :]
    return torch.cat((before, x), -2)
