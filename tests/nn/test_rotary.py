"""Rotary embeddings: a rotation, and by relative position only if it comes after the standardization."""

import pytest
import torch
from torch import Tensor

from fastmax import standardize
from fastmax.nn.rotary import rotate
from tests.support import randn


def products(q: Tensor, k: Tensor, shift: int) -> Tensor:
    positions = torch.arange(q.shape[-2]) + shift
    return rotate(q, positions=positions) @ rotate(k, positions=positions).mT


def by_hand(x: Tensor, base: float, first: int = 0) -> Tensor:
    """Pairs of channels as complex numbers, turned."""
    half = x.shape[-1] // 2
    pairs = torch.complex(x[:, :half].double(), x[:, half:].double())
    frequencies = base ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = (first + torch.arange(len(x), dtype=torch.float64))[:, None] * frequencies
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], -1)


def test_it_is_the_rotation_of_pairs_of_channels() -> None:
    x = randn(5, 6)
    torch.testing.assert_close(rotate(x, base=100.0), by_hand(x, 100.0))


def test_products_depend_on_relative_position_only() -> None:
    q, k = standardize(randn(2, 7, 8)), standardize(randn(2, 7, 8))
    torch.testing.assert_close(products(q, k, 1000), products(q, k, 0))
    torch.testing.assert_close(rotate(q).norm(dim=-1), q.norm(dim=-1))


def test_before_the_standardization_they_would_not() -> None:
    q, k = randn(7, 8) + 1, randn(7, 8) + 1
    s = [
        standardize(rotate(q, positions=p)) @ standardize(rotate(k, positions=p)).mT
        for p in (torch.arange(7), torch.arange(7) + 9)
    ]
    assert (s[0] - s[1]).abs().max() > 0.1


def test_far_positions_are_as_exact_as_near_ones() -> None:
    x, far = randn(4, 8, dtype=torch.float32), 2**24
    turned = rotate(x, positions=torch.arange(4) + far)
    torch.testing.assert_close(turned.double(), by_hand(x, 10000.0, far), rtol=0, atol=1e-6)


def test_positions_per_sequence_and_defaults() -> None:
    x = randn(2, 3, 4, 8)
    positions = torch.tensor([[0, 1, 2, 3], [5, 6, 7, 8]])[:, None]
    y = rotate(x, positions=positions)
    torch.testing.assert_close(y[0], rotate(x[0]))
    torch.testing.assert_close(y[1], rotate(x[1], positions=torch.arange(5, 9)))


def test_an_odd_dimension_is_refused() -> None:
    with pytest.raises(ValueError, match="D must be even, got 5"):
        rotate(randn(2, 5))
