"""fp64 gradcheck through standardization, masks, GQA, varlen and states, every order, causal and not."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fastmax.features import feature_count
from tests.support import fastmax_attention, fastmax_varlen_attention, forced, gradcheck, randn

ORDERS = [1, 2, 3, 4]


@pytest.fixture(params=[True, False], ids=["dense", "factorized"], autouse=True)
def _form(request: pytest.FixtureRequest) -> Any:
    """Both forms, with chunks and tiles so short that a handful of tokens spans several."""
    with forced(dense=request.param, chunk=2, budget=1, tile=2):
        yield


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_standardization_masks_gqa_scale_and_states(backend: str, order: int, is_causal: bool) -> None:
    """All of them at once: outputs and final state, with respect to every input."""
    q, k, v = randn(1, 2, 5, 2, grad=True), randn(1, 1, 4, 2, grad=True), randn(1, 1, 4, 3, grad=True)
    scale = torch.tensor([0.3, 0.2], dtype=torch.float64, requires_grad=True)
    state = (randn(1, 1, feature_count(2, order), 4) * 0.1).requires_grad_()
    with torch.no_grad():
        state[..., 0, -1] += 5  # a denominator well away from zero
    mask = torch.tensor([True, True, False, True])

    def f(*x: Tensor) -> tuple[Tensor, Tensor]:
        o, out = fastmax_attention(
            *x[:3],
            mask,
            is_causal=is_causal,
            order=order,
            scale=x[3],
            enable_gqa=True,
            initial_state=x[4],
            return_state=True,
            backend=backend,
        )
        return o, out

    assert gradcheck(f, (q, k, v, scale, state))


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_default_arguments(backend: str, order: int, is_causal: bool, normalize: bool) -> None:
    q, k, v = randn(5, 3, grad=True), randn(4, 3, grad=True), randn(4, 2, grad=True)

    def f(*x: Tensor) -> Tensor:
        o: Tensor = fastmax_attention(*x, is_causal=is_causal, order=order, normalize=normalize, backend=backend)
        return o

    assert gradcheck(f, (q, k, v))


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_packed_sequences(backend: str, order: int, is_causal: bool) -> None:
    q, k, v = randn(6, 2, 2, grad=True), randn(7, 1, 2, grad=True), randn(7, 1, 3, grad=True)
    ends_q, ends_k = torch.tensor([0, 2, 2, 6]), torch.tensor([0, 3, 5, 7])
    mask = torch.tensor([True, True, False, True, True, True, True])

    def f(*x: Tensor) -> tuple[Tensor, Tensor]:
        o, state = fastmax_varlen_attention(
            *x,
            ends_q,
            ends_k,
            mask,
            is_causal=is_causal,
            order=order,
            scale=0.4,
            enable_gqa=True,
            return_state=True,
            backend=backend,
        )
        return o, state

    assert gradcheck(f, (q, k, v))


class OneEntryWrong(torch.autograd.Function):
    """The identity, with one entry of its gradient off by a thousandth."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Tensor:
        wrong = grad.clone()
        wrong[2, 1] *= 1.001
        return wrong


def test_one_wrong_entry_fails(backend: str) -> None:
    q, k, v = randn(5, 3, grad=True), randn(4, 3, grad=True), randn(4, 2, grad=True)
    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        gradcheck(lambda q, k, v: fastmax_attention(q, OneEntryWrong.apply(k), v, backend=backend), (q, k, v))


def test_a_constant_token_has_a_finite_gradient(backend: str) -> None:
    q, k, v = (
        torch.full((4, 3), 7.0, requires_grad=True),
        torch.full((4, 3), -2.0, requires_grad=True),
        torch.randn(4, 2),
    )
    o = fastmax_attention(q, k, v, backend=backend)
    torch.testing.assert_close(o, v.mean(0).expand(4, 2))
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(o.square().sum(), (q, k)))


def test_twice_backward_and_second_derivatives_are_refused(backend: str) -> None:
    q, k, v = randn(4, 3, grad=True), randn(4, 3), randn(4, 2)
    o = fastmax_attention(q, k, v, backend=backend)
    o.sum().backward(retain_graph=True)
    o.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        o.sum().backward()
    (dq,) = torch.autograd.grad(fastmax_attention(q, k, v, backend=backend).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        dq.sum().backward()
