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
    """F = C(D + order, order): 2145 for D = 64 and order 2, half of the paper's 1 + D + D^2."""
    count = 1
    for i in range(1, order + 1):  # not math.comb: a dimension may be symbolic under torch.compile
        count = count * (head_dim + i) // i
    return count


def block_size(head_dim: int, degree: int) -> int:
    """How many monomials of exactly this degree there are."""
    return comb(head_dim + degree - 1, degree)


@lru_cache(maxsize=128)
def _repeats(head_dim: int, degree: int) -> tuple[list[int], list[float]]:
    """Rows of a block whose leading channel recurs c more times, and 1 / sqrt(c + 1): what a! adds for them."""
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


def _scale_repeats(block: Tensor, head_dim: int, degree: int) -> None:
    rows, factors = _repeats(head_dim, degree)
    index = torch.tensor(rows, device=block.device)
    block[..., index, :] *= torch.tensor(factors, device=block.device, dtype=block.dtype).unsqueeze(-1)


def _pieces(head_dim: int, degree: int) -> list[tuple[int, int, int]]:
    """For each leading channel m: where its rows start in the block, how many, and the suffix of the block below."""
    pieces, start = [], 0
    for m in range(head_dim):
        rows = block_size(head_dim - m, degree - 1)
        pieces.append((start, rows, block_size(head_dim, degree - 1) - rows))
        start += rows
    return pieces


def phi(x: Tensor, order: int) -> Tensor:
    """(..., D, N) -> (..., F, N)."""
    *lead, head_dim, tokens = x.shape
    out = x.new_empty(*lead, feature_count(head_dim, order), tokens)
    out[..., 0, :] = 1
    if order == 0:
        return out
    out[..., 1 : 1 + head_dim, :] = x
    below, begin = out[..., 1 : 1 + head_dim, :], 1 + head_dim
    for degree in range(2, order + 1):
        block = out[..., begin : begin + block_size(head_dim, degree), :]
        for m, (start, rows, suffix) in enumerate(_pieces(head_dim, degree)):
            torch.mul(below[..., suffix:, :], x[..., m : m + 1, :], out=block[..., start : start + rows, :])
        _scale_repeats(block, head_dim, degree)
        below, begin = block, begin + block.shape[-2]
    return out


def phi_vjp(x: Tensor, d: Tensor, order: int) -> Tensor:
    """J_phi(x)^T d for d of (..., F, N), as (..., D, N). Overwrites d."""
    head_dim = x.shape[-2]
    dx = torch.zeros_like(x)
    lower = phi(x, order - 1)
    end = feature_count(head_dim, order)
    for degree in range(order, 1, -1):
        begin = end - block_size(head_dim, degree)
        begin_below = begin - block_size(head_dim, degree - 1)
        block, d_below, below = d[..., begin:end, :], d[..., begin_below:begin, :], lower[..., begin_below:begin, :]
        _scale_repeats(block, head_dim, degree)
        for m, (start, rows, suffix) in enumerate(_pieces(head_dim, degree)):
            piece = block[..., start : start + rows, :]
            dx[..., m, :] += (piece * below[..., suffix:, :]).sum(-2)
            d_below[..., suffix:, :].addcmul_(piece, x[..., m : m + 1, :])
        end = begin
    return dx.add_(d[..., 1 : 1 + head_dim, :]) if order else dx
