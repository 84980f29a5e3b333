"""Dropout of the factorized terms: mode, rate and seed -> masks that do not depend on how the work is cut.

    "standard"   drops entries of every non-constant feature of phi(q̂) and phi(k̂)
    "quadratic"  only those of degree 2
    "1d"         whole tokens q̂_i and k̂_j, before the features

What is kept is multiplied by 1 / (1 - rate), so that the expected numerator of the first two is the undropped one. One mask
serves numerator and denominator. A mask is never stored: it is a hash of the seed, the side (queries or keys), the batch
element, the head, the position and the feature, so the backward pass computes it again from the seed alone, and no cut of
the work changes it.

A token has two words of 32 bits, a feature one, all from a 64-bit hash. An entry is decided by two 32-bit multiplications of
these, which every processor has on vectors of tokens and of features: native/tiles/dropout.h does the same.
"""

from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from fastmax.features import block_size, feature_count

MODES = ("standard", "1d", "quadratic")


def new_seed(device: torch.device) -> Tensor:
    """Draw a seed from torch's generator, so that torch.manual_seed and checkpointing control it."""
    return torch.randint(2**63 - 1, (), dtype=torch.int64, device=device)


@dataclass(frozen=True)
class Dropout:
    """The masks of one side of a problem: the words of its tokens and features, int32."""

    mode: str
    rate: float
    add: Tensor  # (B, H, N)
    multiply: Tensor  # (B, H, N), odd
    features: Tensor  # (F,)

    @staticmethod
    def of(mode: str, rate: float, seed: Tensor, side: int, shape: torch.Size, features: int) -> "Dropout":
        """Return the masks of queries (side 0) or keys (side 1) of shape (B, H, N, D)."""
        root = _mix(seed)
        count = torch.arange(prod(shape[:3]), device=seed.device).view(shape[:3])
        tokens = _mix(count + _mix(root + side))
        words = _mix(torch.arange(features, device=seed.device) - root).to(torch.int32)
        return Dropout(mode, rate, tokens.to(torch.int32), (tokens >> 32).to(torch.int32) | 1, words)

    def of_heads(self, batch: slice, heads: slice, tokens: slice = slice(None)) -> "Dropout":
        """Return the masks of some heads and tokens."""
        return replace(self, add=self.add[batch, heads, tokens], multiply=self.multiply[batch, heads, tokens])

    @property
    def drops_tokens(self) -> bool:
        return self.mode == "1d"

    def token_factors(self, a: int, b: int, dtype: torch.dtype) -> Tensor:
        """Return the factors on the tokens a:b, (B, H, b - a, 1)."""
        return self._multipliers(slice(0, 1), a, b, dtype).mT

    def feature_factors(self, rows: slice, a: int, b: int, dtype: torch.dtype) -> Tensor:
        """Return the factors on these features of the tokens a:b, (B, H, rows, b - a)."""
        return self._multipliers(rows, a, b, dtype)

    def _multipliers(self, rows: slice, a: int, b: int, dtype: torch.dtype) -> Tensor:
        add, multiply = (x[..., None, a:b] for x in (self.add, self.multiply))
        return factors(self.features[rows, None], add, multiply, self.rate, dtype)


def factors(features: Tensor, add: Tensor, multiply: Tensor, rate: float, dtype: torch.dtype) -> Tensor:
    """Return the factors on features, 0 where dropped, from words of features and tokens that broadcast."""
    bits = features + add
    bits *= multiply
    bits ^= (bits >> 16).bitwise_and_(0xFFFF)
    bits *= _ODD_32
    dropped = dropped_of_2_16(rate)
    kept = bits >= (dropped - 2**15) * 2**16  # by the upper half, the one that every bit has reached
    return kept.to(dtype).mul_(2**16 / (2**16 - dropped))


def dropped_of_2_16(rate: float) -> int:
    """Return a rate in 65,536ths, never all of them: what is kept then makes up for exactly what is dropped."""
    return min(round(rate * 2**16), 2**16 - 1)


def dropped_rows(mode: str, head_dim: int, order: int) -> slice:
    """Return the features that a mode drops, as rows of phi."""
    if mode == "standard":
        return slice(1, feature_count(head_dim, order))
    start = 1 + head_dim
    return slice(start, start + (block_size(head_dim, 2) if order >= 2 else 0))


def multipliers(
    mode: str, rate: float, seed: Tensor, side: int, lead: tuple[int, ...], tokens: int, head_dim: int, order: int
) -> Tensor:
    """Return a whole mask, for inspection and tests: (*lead, N, 1) for "1d", else (*lead, N, F)."""
    heads = lead[-1] if lead else 1
    shape = torch.Size((prod(lead[:-1]), heads, tokens, head_dim))
    features = feature_count(head_dim, order)
    whole = Dropout.of(mode, rate, seed, side, shape, features)
    if mode == "1d":
        return whole.token_factors(0, tokens, torch.float64).reshape(*lead, tokens, 1)
    result = torch.ones(*shape[:2], features, tokens, dtype=torch.float64, device=seed.device)
    rows = dropped_rows(mode, head_dim, order)
    result[:, :, rows] = whole.feature_factors(rows, 0, tokens, torch.float64)
    return result.mT.reshape(*lead, tokens, features)


_ODD = (-0x61C8864680B583EB, -0x4B47D0C5A1F4A6D5)
_ODD_32 = -0x2CA5D269


def _mix(x: Tensor) -> Tensor:
    """Mix 64-bit integers by a bijection in which every input bit reaches every output bit."""
    x = x * _ODD[0]
    x ^= (x >> 32) & 0xFFFFFFFF
    x *= _ODD[1]
    x ^= (x >> 29) & 0x7FFFFFFFF
    x *= _ODD[0]
    return x.bitwise_xor_((x >> 32).bitwise_and_(0xFFFFFFFF))
