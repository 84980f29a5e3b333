"""Tokens in slots of equal length, each of one sequence, and sums over slots: the layout in which all heads run at once."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad


def unflatten(x: Tensor, dim: int, *sizes: int) -> Tensor:
    """Split a dimension, as Tensor.unflatten does, which has no type."""
    return x.reshape(*x.shape[:dim], *sizes, *x.shape[dim + 1 :])


@dataclass(frozen=True)
class Slots:
    """The cut of N tokens into `count` slots of `size` places. Made on the device, without reading lengths back."""

    tokens: int
    size: int
    count: int
    packing: "Packing | None" = None

    @staticmethod
    def packed(cu: Tensor, tokens: int, size: int, other: tuple[Tensor, int] | None = None) -> "Slots":
        """Cut packed sequences, each of which gets one slot at least, and room for the same sequence of the other side."""
        cu = cu.to(torch.int64)
        lengths = cu.diff()
        room, most = lengths, tokens
        if other is not None:
            room, most = torch.maximum(lengths, other[0].diff().to(torch.int64)), tokens + other[1]
        ends = ((room + (size - 1)) // size).clamp(min=1).cumsum(0)
        starts = pad(ends, (1, 0))[:-1]
        sequences = lengths.shape[0]
        count = -(-most // size) + sequences
        slot = torch.arange(count, device=cu.device)
        owner = torch.searchsorted(ends, slot, right=True).clamp(max=sequences - 1)
        place = ((slot - starts[owner]) * size).unsqueeze(-1) + torch.arange(size, device=cu.device)
        filled = (place < lengths[owner].unsqueeze(-1)).flatten()
        token = torch.where(filled, (cu[owner].unsqueeze(-1) + place).flatten(), 0)
        here = torch.arange(tokens, device=cu.device)
        of_token = sequence_of(cu, here)
        back = starts[of_token] * size + here - cu[of_token]
        first, last = slot == starts[owner], slot == ends[owner] - 1
        return Slots(tokens, size, count, Packing(token, filled, back, owner, first, last, starts))

    def split(self, x: Tensor) -> Tensor:
        """Reshape (B, H, N, ...) to (B, H, slots, size, ...), with zeros where a slot has no token."""
        if self.packing is None:
            missing = self.count * self.size - self.tokens
            x = x if missing == 0 else pad(x, (*[0, 0] * (x.dim() - 3), 0, missing))
        elif self.tokens == 0:
            x = x.new_zeros(*x.shape[:2], self.count * self.size, *x.shape[3:])
        else:
            filled = self.packing.filled.view(-1, *[1] * (x.dim() - 3))
            x = x.index_select(2, self.packing.token).masked_fill(~filled, 0)
        return unflatten(x, 2, self.count, self.size)

    def join(self, x: Tensor) -> Tensor:
        """Reshape (B, H, slots, size, ...) to (B, H, N, ...): the inverse of `split`."""
        x = x.flatten(2, 3)
        return x.narrow(2, 0, self.tokens) if self.packing is None else x.index_select(2, self.packing.back)


@dataclass(frozen=True)
class Packing:
    """The places of the tokens of packed sequences."""

    token: Tensor  # (slots * size,), the token of each place
    filled: Tensor  # (slots * size,), bool
    back: Tensor  # (N,), the place of each token
    sequence: Tensor  # (slots,)
    first: Tensor  # (slots,), bool: the slot is the first of its sequence
    last: Tensor
    starts: Tensor  # (sequences,), the first slot of each

    def reversed(self) -> "Packing":
        """Return the slots in reverse order. Only what sums over slots read changes."""
        sequence, first, last = (x.flip(0) for x in (self.sequence, self.last, self.first))
        return Packing(self.token, self.filled, self.back, sequence, first, last, self.starts)


def sequence_of(cu: Tensor, tokens: Tensor) -> Tensor:
    """Return the number of the packed sequence that each token is in."""
    return torch.searchsorted(cu[1:].contiguous(), tokens, right=True)


SCANNED_AT_ONCE = 64
"""Slots whose sums are one product with a triangular matrix; more are grouped."""


def running_sums(terms: Tensor, log_factors: Tensor | None) -> Tensor:
    """Return s_i = exp(log_factors_i) s_(i-1) + t_i over the slots of (B, H, slots, ...); log_factors is (B, H, slots).

    A factor may be 0 (-inf). Exponents are sums of log_factors, never differences, so that what follows such a
    factor loses nothing.
    """
    if log_factors is None:
        return terms.cumsum(2)
    _, _, slots, *rest = terms.shape
    if slots <= SCANNED_AT_ONCE:
        matrix = _between(log_factors).to(terms.dtype)
        return (matrix @ terms.flatten(3)).view(*terms.shape[:3], *rest)
    missing = -slots % SCANNED_AT_ONCE
    terms = pad(terms, (*[0, 0] * len(rest), 0, missing))
    groups = terms.shape[2] // SCANNED_AT_ONCE
    terms = unflatten(terms, 2, groups, SCANNED_AT_ONCE)
    logs = unflatten(pad(log_factors, (0, missing)), 2, groups, SCANNED_AT_ONCE)
    within = (_between(logs).to(terms.dtype) @ terms.flatten(4)).view(terms.shape)
    whole = running_sums(within[:, :, :, -1], logs.sum(-1))
    before = pad(whole, (*[0, 0] * len(rest), 1, 0))[:, :, :-1].unsqueeze(3)
    factors = logs.cumsum(-1).exp().to(terms.dtype).view(*logs.shape, *[1] * len(rest))
    return torch.addcmul(within, factors, before).flatten(2, 3).narrow(2, 0, slots)


def _between(logs: Tensor) -> Tensor:
    """Return exp of the sums of logs over j + 1 .. i, (..., slots, slots), and 0 for j > i."""
    slots = logs.shape[-1]
    summed = logs.unsqueeze(-1).expand(*logs.shape, slots)
    later = torch.ones(slots, slots, dtype=torch.bool, device=logs.device).tril(-1)
    return torch.where(later, summed, 0).cumsum(-2).exp().tril()
