"""core.py, the paper as written, against the dense oracle."""

import pytest
import torch

from fastmax import core
from fastmax.reference import reference_attention
from tests.support import randn


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_the_factorization_equals_the_matrix(order: int, is_causal: bool) -> None:
    q, k, v = randn(2, 3, 20, 4), randn(2, 3, 20, 4), randn(2, 3, 20, 5)
    expected = reference_attention(q, k, v, order=order, is_causal=is_causal)
    torch.testing.assert_close(core.fastmax(q, k, v, order=order, is_causal=is_causal), expected)


def test_cross_attention_and_scale() -> None:
    q, k, v = randn(7, 4), randn(20, 4), randn(20, 5)
    torch.testing.assert_close(core.fastmax(q, k, v, scale=0.3), reference_attention(q, k, v, scale=0.3))


def test_standardize_is_layer_norm_without_parameters() -> None:
    x = randn(5, 7) * 3 + 2
    torch.testing.assert_close(core.standardize(x), torch.nn.functional.layer_norm(x, (7,), eps=core.EPS))


def test_similarity_is_the_truncated_exponential() -> None:
    s = torch.linspace(-2, 2, 9, dtype=torch.float64)
    torch.testing.assert_close(core.similarity(s, 4), 1 + s + s**2 / 2 + s**3 / 6 + s**4 / 24)
    torch.testing.assert_close(core.similarity(s, 0), torch.ones_like(s))


@pytest.mark.parametrize(("order", "expected"), [(1, 1 / 8), (2, 1.0), (3, 1 / 8), (4, 1.0)])
def test_default_scale(order: int, expected: float) -> None:
    assert core.default_scale(order, 8) == expected


def test_moments_are_the_papers() -> None:
    k, v = randn(6, 3), randn(6, 2)
    m = core.moments(k, v, 2)
    torch.testing.assert_close(m.x[2].view(3, 3, 2), torch.einsum("nm,nl,nj->mlj", k, k, v))
    torch.testing.assert_close(m.y[1].squeeze(-1), k.sum(0))
    causal = core.moments(k, v, 2, is_causal=True)
    torch.testing.assert_close(causal.x[2][-1], m.x[2])
    assert causal.y[0][:, 0, 0].tolist() == [1, 2, 3, 4, 5, 6]
