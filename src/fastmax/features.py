"""Packed monomials: f(x . y) = phi(x) . phi(y), each monomial once.

    phi_a(x) = x^a / sqrt(a!)     for every multi-index a with |a| <= order

Features lie on the second last dimension, (..., D, N) -> (..., F, N), so that each is a contiguous row over tokens. They
are sorted by degree, then lexicographically: 1; x_0 .. x_{D-1}; x_0 x_0, x_0 x_1, .. x_0 x_{D-1}, x_1 x_1, ... The
monomials of a degree that begin with x_m are x_m times those of the degree below that begin with x_m or a later channel:
a suffix of the block below. That recursion is all there is here. These functions run inside the custom ops, without
autograd; `phi_vjp` is their derivative.
"""

from functools import lru_cache
from math import comb, sqrt

import torch
from torch import Tensor


def feature_count(head_dim: int, order: int) -> int:
    """Return F = C(D + order, order): 2145 for D = 64 and order 2, half of the paper's 1 + D + D^2."""
    count = 1
    for i in range(1, order + 1):  # not math.comb: a dimension may be symbolic under torch.compile
        count = count * (head_dim + i) // i
    return count


def block_size(head_dim: int, degree: int) -> int:
    """Return the number of monomials of exactly this degree."""
    return comb(head_dim + degree - 1, degree)


@lru_cache(maxsize=128)
def _repeats(head_dim: int, degree: int) -> tuple[list[int], list[float]]:
    """Return the rows of a block whose leading channel recurs c more times, and 1 / sqrt(c + 1), which a! adds for them."""
    rows: list[int] = []
    factors: list[float] = []
    start = 0
    for m in range(head_dim):
        left = head_dim - m
        for row in range(block_size(left, degree) - block_size(left - 1, degree)):
            count, rest = 1, degree - 1
            # rows that begin with m^(c+1) come before those that begin with m^c and a later channel
            while rest and row < comb(left + rest - 2, rest - 1):
                count, rest = count + 1, rest - 1
            if count > 1:
                rows.append(start + row)
                factors.append(1 / sqrt(count))
        start += block_size(left, degree) - block_size(left - 1, degree)
    return rows, factors


@lru_cache(maxsize=128)
def _repeat_tensors(head_dim: int, degree: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    rows, factors = _repeats(head_dim, degree)
    return torch.tensor(rows, device=device), torch.tensor(factors, device=device, dtype=dtype).unsqueeze(-1)


def _scale_repeats(block: Tensor, head_dim: int, degree: int) -> None:
    rows, factors = _repeat_tensors(head_dim, degree, block.device, block.dtype)
    block.index_copy_(-2, rows, block.index_select(-2, rows) * factors)


@lru_cache(maxsize=128)
def _pieces(head_dim: int, degree: int) -> tuple[list[int], list[int]]:
    """Return by leading channel m how many rows of the block begin with it, and where its suffix of the block below starts.

    That suffix has as many rows as the piece.
    """
    rows = [block_size(head_dim - m, degree - 1) for m in range(head_dim)]
    return rows, [block_size(head_dim, degree - 1) - r for r in rows]


def phi(x: Tensor, order: int) -> Tensor:
    """Compute the features, (..., D, N) -> (..., F, N)."""
    *lead, head_dim, tokens = x.shape
    out = x.new_empty(*lead, feature_count(head_dim, order), tokens)
    out.narrow(-2, 0, 1).fill_(1)
    if order == 0:
        return out
    below = out.narrow(-2, 1, head_dim).copy_(x)
    channels = torch.split(x, 1, -2)
    begin = 1 + head_dim
    for degree in range(2, order + 1):
        rows, suffixes = _pieces(head_dim, degree)
        block = out.narrow(-2, begin, sum(rows))
        for piece, channel, suffix, count in zip(torch.split(block, rows, -2), channels, suffixes, rows, strict=True):
            torch.mul(below.narrow(-2, suffix, count), channel, out=piece)
        _scale_repeats(block, head_dim, degree)
        below, begin = block, begin + sum(rows)
    return out


def phi_vjp(x: Tensor, d: Tensor, order: int) -> Tensor:
    """Return J_phi(x)^T d for d of (..., F, N), as (..., D, N). Overwrites d."""
    head_dim = x.shape[-2]
    dx = torch.zeros_like(x)
    channels, d_channels = torch.split(x, 1, -2), torch.split(dx, 1, -2)
    lower = phi(x, order - 1)
    end = feature_count(head_dim, order)
    for degree in range(order, 1, -1):
        rows, suffixes = _pieces(head_dim, degree)
        begin = end - sum(rows)
        size_below = block_size(head_dim, degree - 1)
        block, d_below = d.narrow(-2, begin, sum(rows)), d.narrow(-2, begin - size_below, size_below)
        below = lower.narrow(-2, begin - size_below, size_below)
        _scale_repeats(block, head_dim, degree)
        pieces = zip(torch.split(block, rows, -2), channels, d_channels, suffixes, rows, strict=True)
        for piece, channel, d_channel, suffix, count in pieces:
            d_channel += (piece * below.narrow(-2, suffix, count)).sum(-2, keepdim=True)
            d_below.narrow(-2, suffix, count).addcmul_(piece, channel)
        end = begin
    return dx.add_(d.narrow(-2, 1, head_dim))
