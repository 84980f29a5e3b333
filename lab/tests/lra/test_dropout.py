"""Dropout of activations: rate, scale, gradient, and what governs it."""

import pytest
import torch

from fastmax_lab.lra.dropout import Dropout


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(1001,), (100, 333), (0, 3)])
def test_it_drops_at_its_rate_and_keeps_the_mean(rate: float, shape: tuple[int, ...]) -> None:
    x = torch.ones(shape, dtype=torch.float64, requires_grad=True)
    y = Dropout(rate)(x)
    dropped = (y == 0).double()
    if x.numel():
        assert dropped.mean().item() == pytest.approx(rate, abs=4 * (rate * (1 - rate) / x.numel()) ** 0.5)
    torch.testing.assert_close(y.detach(), (1 - dropped) / (1 - rate))
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad, y)


def test_each_of_four_lanes_has_the_rate() -> None:
    lanes = (Dropout(0.3)(torch.ones(40_000, 4)) == 0).double().mean(0)
    assert ((lanes - 0.3).abs() < 4 * (0.21 / 40_000) ** 0.5).all()


def test_the_generator_governs_it_and_evaluation_has_none() -> None:
    layer, x = Dropout(0.5), torch.randn(64, 64)
    torch.manual_seed(1)
    first = layer(x)
    assert not torch.equal(layer(x), first)
    torch.manual_seed(1)
    assert torch.equal(layer(x), first)
    assert layer.eval()(x) is x
    assert Dropout(0.0)(x) is x
    with pytest.raises(ValueError, match=r"must be in \[0, 1\), got 1"):
        Dropout(1.0)
