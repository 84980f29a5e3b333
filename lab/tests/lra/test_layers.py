"""Linear layers against PyTorch's. Dropout: rate, scale, gradient, and what governs it."""

import pytest
import torch

from fastmax_lab.lra.layers import MIN_ROWS, PARTS, QuickDropout, QuickLinear


@pytest.mark.parametrize(
    "shape", [(4, MIN_ROWS // 4, 12), (PARTS, MIN_ROWS // PARTS + 1, 12), (3, 5, 12), (1, MIN_ROWS + 1, 12)]
)
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_is_that_of_torch(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    layer = QuickLinear(shape[-1], 7, bias=bias)
    x = torch.randn(shape[1], shape[0], shape[2]).transpose(0, 1).requires_grad_()
    y = layer(x)
    assert y.shape == (*shape[:-1], 7)
    upstream = torch.randn_like(y)
    inputs = (x, *layer.parameters())
    found = torch.autograd.grad(y, inputs, upstream)
    exact = tuple(t.detach().double().requires_grad_() for t in inputs)
    expected = torch.nn.functional.linear(*exact)
    torch.testing.assert_close(y, expected.float())
    for got, want in zip(found, torch.autograd.grad(expected, exact, upstream.double()), strict=True):
        torch.testing.assert_close(got, want.float(), rtol=1e-5, atol=1e-5 * float(want.abs().max()))


@pytest.mark.parametrize(("rows", "called"), [(MIN_ROWS, True), (MIN_ROWS - PARTS, False), (MIN_ROWS + 1, False)])
def test_many_rows_are_a_convolution(rows: int, called: bool) -> None:
    layer, x = QuickLinear(8, 8), torch.randn(1, rows, 8)
    with torch.profiler.profile() as profile:
        layer(x)
    assert ("aten::convolution" in {event.key for event in profile.key_averages()}) == called


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(1001,), (100, 333), (0, 3)])
def test_it_drops_at_its_rate_and_keeps_the_mean(rate: float, shape: tuple[int, ...]) -> None:
    x = torch.ones(shape, dtype=torch.float64, requires_grad=True)
    y = QuickDropout(rate)(x)
    dropped = (y == 0).double()
    if x.numel():
        assert dropped.mean().item() == pytest.approx(rate, abs=4 * (rate * (1 - rate) / x.numel()) ** 0.5)
    torch.testing.assert_close(y.detach(), (1 - dropped) / (1 - rate))
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad, y)


def test_each_of_four_lanes_has_the_rate() -> None:
    lanes = (QuickDropout(0.3)(torch.ones(40_000, 4)) == 0).double().mean(0)
    assert ((lanes - 0.3).abs() < 4 * (0.21 / 40_000) ** 0.5).all()


def test_the_generator_governs_it_and_evaluation_has_none() -> None:
    layer, x = QuickDropout(0.5), torch.randn(64, 64)
    torch.manual_seed(1)
    first = layer(x)
    assert not torch.equal(layer(x), first)
    torch.manual_seed(1)
    assert torch.equal(layer(x), first)
    assert layer.eval()(x) is x
    assert QuickDropout(0.0)(x) is x
    with pytest.raises(ValueError, match=r"must be in \[0, 1\), got 1"):
        QuickDropout(1.0)
