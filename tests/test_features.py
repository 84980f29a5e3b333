"""Packed monomials: their dot product is the polynomial, their Jacobian product is its derivative."""

from itertools import combinations_with_replacement
from math import comb, factorial, prod, sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastmax.core import similarity
from fastmax.features import feature_count, phi, phi_vjp
from tests.support import randn


@given(st.integers(1, 7), st.integers(1, 4), st.integers(0, 5))
def test_their_dot_product_is_the_similarity(head_dim: int, order: int, tokens: int) -> None:
    x, y = randn(2, head_dim, tokens), randn(2, head_dim, 3)
    assert phi(x, order).shape == (2, comb(head_dim + order, order), tokens)
    torch.testing.assert_close(phi(x, order).mT @ phi(y, order), similarity(x.mT @ y, order))


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_they_are_ordered_by_degree_then_lexicographically(order: int) -> None:
    x = randn(3, 1)
    expected = []
    for degree in range(order + 1):
        for index in combinations_with_replacement(range(3), degree):
            weight = prod(factorial(index.count(m)) for m in range(3))
            expected.append(prod([x[m, 0].item() for m in index], start=1.0) / sqrt(weight))
    torch.testing.assert_close(phi(x, order)[:, 0], torch.tensor(expected, dtype=torch.float64))


@given(st.integers(1, 5), st.integers(1, 4))
def test_the_jacobian_product_is_the_derivative(head_dim: int, order: int) -> None:
    x, y = randn(head_dim, 4, grad=True), randn(head_dim, 3)
    weights = randn(3, 4)
    d = phi(y, order) @ weights  # of sum(weights * f(y . x)), as a function of phi(x)
    (expected,) = torch.autograd.grad((similarity(y.mT @ x, order) * weights).sum(), x)
    torch.testing.assert_close(phi_vjp(x.detach(), d, order), expected)


def test_counts() -> None:
    assert feature_count(64, 2) == 2145
    assert [feature_count(3, order) for order in range(5)] == [1, 4, 10, 20, 35]
