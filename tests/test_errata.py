"""docs/errata.md, item by item: what the paper prints gives something else, and what the library does instead."""

import re
from collections.abc import Callable
from math import sqrt
from pathlib import Path
from typing import cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fastmax import attention_matrix, core, dropout, similarity, standardize
from fastmax.nn.rotary import rotate
from tests.support import fastmax_attention, forced, randn

SIGNED_TOKENS = st.lists(st.tuples(st.floats(-1, 1), st.floats(-10, 10)), min_size=1, max_size=24)
"""(s / limit, v) of each key that one query sees."""


def scores(q: Tensor, k: Tensor) -> Tensor:
    return standardize(q) @ standardize(k).mT


def attend(q: Tensor, k: Tensor, v: Tensor, form: str, is_causal: bool, normalize: bool = True) -> Tensor:
    """Compute attention by the dense or the factorized form of the plain backend, or as users get it."""
    if form == "auto":
        return cast(Tensor, fastmax_attention(q, k, v, is_causal=is_causal, normalize=normalize))
    with forced(dense=form == "dense"):
        return cast(Tensor, fastmax_attention(q, k, v, is_causal=is_causal, normalize=normalize, backend="chunked"))


def ratio(weights: Tensor, v: Tensor) -> Tensor:
    return weights @ v / weights.sum(-1, keepdim=True)


# 1. the lost 1/2


@pytest.mark.parametrize("form", ["dense", "factorized", "auto"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_equations_22_and_30_lose_the_half_of_equation_8(is_causal: bool, form: str) -> None:
    q, k, v = randn(96, 4), randn(96, 4), randn(96, 3)
    s = scores(q, k)
    as_in_8, as_in_22 = 1 + s + s**2 / 2, 1 + s + s**2
    if is_causal:
        as_in_8, as_in_22 = as_in_8.tril(), as_in_22.tril()
    o = attend(q, k, v, form, is_causal)
    torch.testing.assert_close(o, ratio(as_in_8, v))
    torch.testing.assert_close(core.fastmax(q, k, v, is_causal=is_causal), ratio(as_in_8, v))
    assert (o - ratio(as_in_22, v)).abs().max() > 0.02


def test_equation_15_is_the_derivative_of_equation_8_not_of_22(backend: str) -> None:
    s, v = randn(9), randn(9)

    def derivative(f: Callable[[Tensor], Tensor]) -> Tensor:
        x = s.clone().requires_grad_()
        return torch.autograd.grad(ratio(f(x), v).sum(), x)[0]

    printed = (1 + s) / similarity(s, 2).sum() * (v - ratio(similarity(s, 2), v))
    torch.testing.assert_close(printed, derivative(lambda x: 1 + x + x**2 / 2))
    torch.testing.assert_close(printed, score_gradient(s, v, backend=backend))
    assert (printed - derivative(lambda x: 1 + x + x**2)).abs().max() > 0.02


# 2. STD


def test_std_is_the_biased_one() -> None:
    x = randn(5, 7)
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    torch.testing.assert_close(standardize(x), centred / (variance + core.EPS).sqrt())
    torch.testing.assert_close(standardize(x, eps=0).square().sum(-1), torch.full((5,), 7.0, dtype=x.dtype))
    unbiased = centred / centred.std(-1, keepdim=True)
    torch.testing.assert_close(unbiased.square().sum(-1), torch.full((5,), 6.0, dtype=x.dtype))


@pytest.mark.parametrize("head_dim", [1, 2, 3, 7, 48, 64, 100])
@pytest.mark.parametrize("value", [0.0, 1e-3, 0.1, -1 / 3, 12345.678, 1e6 / 3, -1e6])
def test_a_constant_token_becomes_exact_zeros(value: float, head_dim: int) -> None:
    token = torch.full((1, head_dim), value, dtype=torch.float32)
    assert not standardize(token).any()
    centred = token - token.mean()
    as_printed = centred / centred.std(correction=0)
    assert not as_printed.isfinite().any()


def test_a_constant_token_sees_all_keys_alike_and_has_finite_gradients(backend: str) -> None:
    q, k, v = (
        torch.full((1, 7), 12345.678, requires_grad=True),
        torch.randn(5, 7, requires_grad=True),
        torch.randn(5, 3),
    )
    o = fastmax_attention(q, k, v, backend=backend)
    torch.testing.assert_close(o, v.mean(0, keepdim=True))
    assert all(x.isfinite().all() for x in torch.autograd.grad(o.sum(), (q, k)))


@pytest.mark.parametrize("form", ["dense", "factorized", "auto"])
def test_nothing_leaks_from_the_future(form: str) -> None:
    now, N = 150, 200
    before = [randn(N, 4) for _ in range(3)]
    after = [torch.cat([x[:now], 100 * randn(N - now, 4)]) for x in before]

    def present(inputs: list[Tensor], normalize: bool = True) -> Tensor:
        q, k, v = inputs
        return attend(q, k, v, form, is_causal=True, normalize=normalize)[:now]

    def over_the_sequence(inputs: list[Tensor]) -> list[Tensor]:
        q, k, v = inputs
        return [q / q.abs().max(), k / k.abs().max(), v]

    assert torch.equal(present(before), present(after))
    leaky = [present(over_the_sequence(x), normalize=False) for x in (before, after)]
    assert (leaky[0] - leaky[1]).abs().max() > 0.02


# 3. the range of s, and positivity


@pytest.mark.parametrize("head_dim", [2, 7, 64])
def test_s_reaches_from_minus_d_to_d(head_dim: int) -> None:
    D = head_dim
    x = randn(1, D)
    s = scores(torch.cat([x, -x]), 3 * x)
    torch.testing.assert_close(s, torch.tensor([[D], [-D]], dtype=s.dtype), rtol=1e-5, atol=0)
    assert s.abs().max() <= D
    assert scores(randn(50, D), randn(50, D)).min() < 0


@pytest.mark.parametrize(("order", "least"), [(2, 0.5), (4, 0.2704)])
def test_even_orders_are_positive_everywhere(order: int, least: float) -> None:
    s = torch.linspace(-64, 64, 128_001, dtype=torch.float64)
    f = similarity(s, order)
    assert f.min().item() == pytest.approx(least, abs=1e-4)
    assert similarity(torch.tensor(-1.0), 2).item() == 0.5
    assert attention_matrix(randn(64, 64), randn(64, 64), order=order).min() > 0


@pytest.mark.parametrize(("is_causal", "expected"), [(False, 0.159), (True, 0.258)])
def test_odd_orders_at_scale_1_have_denominators_below_zero(is_causal: bool, expected: float) -> None:
    q, k = randn(64, 64, 64), randn(64, 64, 64)
    m = core.moments(standardize(k), torch.ones_like(k[..., :1]), 1, is_causal)
    _, g = core.readout(standardize(q), m, 1, is_causal)
    assert (g <= 0).double().mean().item() == pytest.approx(expected, abs=0.02)
    assert attention_matrix(q[0], k[0], is_causal=is_causal, order=1, scale=1.0).min() < 0


@pytest.mark.parametrize("order", [1, 3])
def test_odd_orders_at_the_default_scale_are_never_negative(order: int) -> None:
    q, k = randn(64, 64), randn(64, 64)
    k[:32] = -q[:32]  # s = -D before the scale, the least it can be
    assert attention_matrix(q, k, order=order).min() >= 0
    assert attention_matrix(q, k, order=order, is_causal=True).min() >= 0
    assert attention_matrix(q, k, order=order, scale=2 / 64).min() < 0


# 4. the gradient bound


def score_gradient(s: Tensor, v: Tensor, order: int = 2, backend: str = "auto") -> Tensor:
    """do / ds_l for one query with scores s and one channel of values v: with k the identity, s is q itself."""
    q = s[None].clone().requires_grad_()
    k = torch.eye(s.shape[0], dtype=s.dtype)
    o = fastmax_attention(q, k, v[:, None], order=order, scale=1.0, normalize=False, backend=backend)
    return torch.autograd.grad(o.sum(), q)[0][0]


def factor(s: Tensor) -> float:
    """The first factor of [15] for the key 0."""
    return ((1 + s[0]) / similarity(s, 2).sum()).item()


def factor_bound(keys: int, limit: float) -> float:
    """Return the largest |1 + s_l| / sum f(s) for |s| <= limit, 1 <= limit."""
    x = 1 + limit
    return 1 / sqrt(keys) if keys <= x**2 else 2 * x / (keys + x**2)


def gradient_bound(keys: int, limit: float) -> float:
    """Return the largest |do / ds_l|, in units of max v - min v, for |s| <= limit, 1 <= limit."""
    x = 1 + limit
    if keys < 3:
        return 0.25 * (keys - 1)
    return 3 * sqrt(3) / 8 * (keys - 1) / keys**1.5 if keys <= 3 * x**2 else 2 * x * (keys - 1) / (keys + x**2) ** 2


def one_against_all(keys: int, first: float, others: float) -> Tensor:
    return torch.tensor([first] + [others] * (keys - 1), dtype=torch.float64)


@given(SIGNED_TOKENS, st.sampled_from([1.0, 3.0, 64.0]))
def test_the_gradient_bound_holds(tokens: list[tuple[float, float]], limit: float) -> None:
    s, v = torch.tensor(tokens, dtype=torch.float64).unbind(-1)
    s, N = s * limit, len(tokens)
    gradient = score_gradient(s, v).abs().max().item()
    spread = (v.max() - v.min()).item()
    assert factor(s) <= factor_bound(N, limit) * (1 + 1e-12)
    assert gradient <= gradient_bound(N, limit) * spread * (1 + 1e-12) + 1e-13 * v.abs().max().item()
    assert gradient_bound(N, limit) * spread <= 2 * factor_bound(N, limit) * v.abs().max().item()


@pytest.mark.parametrize("limit", [1.0, 3.0, 64.0])
@pytest.mark.parametrize("keys", [1, 2, 3, 4, 5, 11, 12, 13, 16, 17, 47, 48, 49, 300])
def test_the_gradient_bound_is_attained(keys: int, limit: float, backend: str) -> None:
    N = keys
    s = one_against_all(N, min(sqrt(N) - 1, limit), -1)
    assert factor(s) == pytest.approx(factor_bound(N, limit), rel=1e-14)
    s = one_against_all(N, min(sqrt(N / 3) - 1, limit), -1) if N > 2 else torch.zeros(N, dtype=torch.float64)
    gradient = score_gradient(s, one_against_all(N, 1, -1), backend=backend)
    assert gradient[0].item() == pytest.approx(2 * gradient_bound(N, limit), rel=1e-12)


@pytest.mark.parametrize("keys", [1, 2, 3, 4, 10, 100])
def test_the_papers_factor_is_loose_under_its_premise_and_wrong_for_negative_s(keys: int) -> None:
    N = keys
    true = 4 / (2 * N + 3) if N > 2 else 1 / sqrt(2 * N - 1)
    printed = 5 / (2 * N + 3)
    assert factor(one_against_all(N, min(1, sqrt(2 * N - 1) - 1), 0)) == pytest.approx(true, rel=1e-14)
    grid = torch.linspace(0, 1, 1001, dtype=torch.float64)
    assert ((1 + grid) / (N - 1 + similarity(grid, 2))).max() <= true * (1 + 1e-14)
    assert true < printed or N == 1
    assert (factor(one_against_all(N, min(1, sqrt(N) - 1), -1)) > printed) == (N > 2)


def test_the_papers_gradient_bounds_fail_below_and_above() -> None:
    s, v = one_against_all(15, 1, -1), one_against_all(15, 1, -1)
    printed = 10 / (2 * 15 + 3)
    assert score_gradient(s, v)[0] > printed
    assert score_gradient(s, -v)[0] < -printed
    assert score_gradient(s.abs() / 2, -v)[0] < 0  # 0 <= s <= 1, as the paper assumes


def test_order_1_has_no_gradient_bound() -> None:
    v = one_against_all(4, 1, -1)
    for distance in (1e-2, 1e-4, 1e-6):
        s = torch.full((4,), distance - 1, dtype=torch.float64)
        assert score_gradient(s, v, order=1)[0].item() == pytest.approx(0.375 / distance, rel=1e-6)


# 5. equations 3, 10, 13, 14 and 20


def test_equation_10_holds_for_rows_not_columns() -> None:
    a = attention_matrix(randn(20, 8), randn(20, 8))
    ones = torch.ones(20, dtype=a.dtype)
    torch.testing.assert_close(a.sum(-1), ones)
    assert (a.sum(-2) - 1).abs().max() > 0.1


def test_the_i_of_equation_20_is_the_matrix_of_ones(backend: str) -> None:
    q, k, v = randn(20, 8), randn(20, 8), randn(20, 3)
    s = scores(q, k)
    rest = s + s**2 / 2
    o = fastmax_attention(q, k, v, backend=backend)
    torch.testing.assert_close(o, ratio(torch.ones_like(s) + rest, v))
    assert (o - ratio(torch.eye(20, dtype=s.dtype) + rest, v)).abs().max() > 0.02


def test_a_causal_row_is_divided_by_its_own_sum() -> None:
    q, k = randn(20, 8), randn(20, 8)
    tril = attention_matrix(q, k).tril()  # [3]
    causal = attention_matrix(q, k, is_causal=True)
    assert (tril.sum(-1) < 1).sum() == 19
    torch.testing.assert_close(causal, tril / tril.sum(-1, keepdim=True))
    torch.testing.assert_close(causal.sum(-1), torch.ones(20, dtype=q.dtype))


def test_the_indices_of_equations_13_and_14() -> None:
    s, N, j = one_against_all(6, 1, 0), 6, 0
    f = similarity(s, 2)
    a = f / f.sum()

    def weights(x: Tensor) -> Tensor:
        return similarity(x, 2) / similarity(x, 2).sum()

    jacobian = cast(Tensor, torch.autograd.functional.jacobian(weights, s))
    torch.testing.assert_close(jacobian, (1 + s) / f.sum() * (torch.eye(N, dtype=s.dtype) - a[:, None]))
    assert N * f[j] / f.sum() == 2  # [13] as printed: every weight is f(s_ij) / sum f, and N of these are not one
    as_printed = (1 + s) / f.sum() * (torch.eye(N, dtype=s.dtype) - a[j])
    assert as_printed.sum(0).abs().max() > 0.1  # weights that sum to one have derivatives that sum to zero
    assert jacobian.sum(0).abs().max() < 1e-14


# 6. rotary embeddings


def test_rotary_embeddings_are_relative_after_the_standardization_only() -> None:
    q, k, v = randn(12, 8), randn(12, 8), randn(12, 3)

    def rotated(x: Tensor, first: int) -> Tensor:
        return rotate(x, base=100.0, positions=torch.arange(first, first + 12))

    def after(first: int) -> Tensor:
        q_hat, k_hat = (rotated(standardize(x), first) for x in (q, k))
        return cast(Tensor, fastmax_attention(q_hat, k_hat, v, is_causal=True, normalize=False))

    def before(first: int) -> Tensor:
        return cast(Tensor, fastmax_attention(rotated(q, first), rotated(k, first), v, is_causal=True))

    torch.testing.assert_close(after(0), after(17))
    assert (before(0) - before(17)).abs().max() > 0.02


# 7. dropout


@pytest.mark.parametrize("mode", dropout.MODES)
def test_dropout_keeps_the_expected_numerator_and_shares_the_mask(mode: str) -> None:
    """With values all one, numerator and denominator are one sum: their quotient is one only if they share the mask."""
    q, k = randn(1, 6, 3), randn(1, 9, 3)
    ones = fastmax_attention(q, k, torch.ones(1, 9, 2, dtype=torch.float64), dropout_p=0.4, dropout_mode=mode)
    torch.testing.assert_close(ones, torch.ones_like(ones))
    if mode != "1d":
        kept = [dropout.multipliers(mode, 0.4, torch.tensor(seed), 0, (1,), 500, 3, 2) for seed in range(20)]
        torch.testing.assert_close(torch.stack(kept).mean((0, 1, 2)), torch.ones(10).double(), atol=0.04, rtol=0)


# 8. what the backward pass must keep


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_the_backward_pass_keeps_order_n_d_for_every_order(order: int, is_causal: bool) -> None:
    N, D, Dv = 64, 4, 3
    q, k, v = randn(N, D, grad=True), randn(N, D, grad=True), randn(N, Dv, grad=True)
    saved: list[int] = []

    def pack(x: Tensor) -> Tensor:
        saved.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        fastmax_attention(q, k, v, order=order, is_causal=is_causal)
    assert sum(saved) == N * (2 * D + 2 * Dv + 1)


# 10. the released code


@pytest.mark.parametrize("form", ["dense", "factorized", "auto"])
def test_the_released_normalization_leaks_the_future(form: str) -> None:
    """One later token with a larger norm changes what earlier ones see. Every score is at most 1."""
    q, k, v = randn(200, 4), randn(200, 4), randn(200, 3)
    later = k.clone()
    later[-1] *= 100

    def released(x: Tensor) -> Tensor:
        return x / x.norm(dim=-1).max()

    assert (released(q) @ released(k).mT).abs().max() <= 1
    before, after = (
        attend(released(q), released(keys), v, form, is_causal=True, normalize=False)[:-1] for keys in (k, later)
    )
    assert (before - after).abs().max() > 0.02
    before, after = (attend(q, keys, v, form, is_causal=True)[:-1] for keys in (k, later))
    assert torch.equal(before, after)


def test_the_page_names_the_tests_that_are_here() -> None:
    page = Path(__file__).parents[1].joinpath("docs", "errata.md").read_text(encoding="utf-8")
    here = {name for name in globals() if name.startswith("test_")} - {"test_the_page_names_the_tests_that_are_here"}
    assert set(re.findall(r"`(test_\w+)`", page)) == here
