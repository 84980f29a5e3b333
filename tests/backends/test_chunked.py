"""The chunked backend: what the conformance suite, whose sequences are short, does not show of it."""

import pytest
import torch

from fastmax import fastmax_attention, reference_attention


@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "unmasked"])
@pytest.mark.parametrize("values", [0.0, 10.0])
def test_fp32_sums_over_many_keys(values: float, is_causal: bool) -> None:
    """Sums of sums: terms that are added one by one to a large total lose what they have below its last bit."""
    n, last = 1 << 17, slice(-64, None)  # for fewer queries the dense form would be cheaper
    q, k, v = (torch.randn(1, 1, n, 8) for _ in range(3))
    v += values
    exact = fastmax_attention(*(x.double() for x in (q[:, :, last], k, v)), backend="chunked")
    found = fastmax_attention(q if is_causal else q[:, :, last], k, v, is_causal=is_causal, backend="chunked")
    # the last query of all sees every key in either case
    error = (found[:, :, -1] - exact[:, :, -1]).abs().max() / exact.abs().max()
    assert error < 2e-6


def test_gradients_of_fp32_sums_over_many_queries() -> None:
    """That of the keys is a sum over all queries."""
    n = 1 << 17
    q, k, v, do = torch.randn(1, 1, n, 8), torch.randn(1, 1, 64, 8), torch.randn(1, 1, 64, 8), torch.rand(1, 1, n, 8)
    grads = []
    for dtype in (torch.float64, torch.float32):
        leaves = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        o = fastmax_attention(*leaves, backend="chunked")
        grads.append(torch.autograd.grad(o, leaves[1:], do.to(dtype)))
    for exact, found in zip(*grads, strict=True):
        assert (found - exact).abs().max() / exact.abs().max() < 5e-6


@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "unmasked"])
@pytest.mark.parametrize(("order", "dim"), [(2, 64), (4, 8)])
@pytest.mark.parametrize("noise", [1e-3, 0.0], ids=["alike", "identical"])
def test_fp32_sums_of_keys_that_are_alike(order: int, dim: int, noise: float, is_causal: bool) -> None:
    """About zero, a small weight is what is left of terms of order D²: off by 7e-5, and the gradient of q by 1e-3."""
    n = 2300
    q, k, v, do = (torch.randn(1, 2, n, dim) for _ in range(4))
    k = torch.randn(1, 2, 1, dim) + noise * k
    found = []
    for attend, dtype, options in (
        (reference_attention, torch.float64, {}),
        (reference_attention, torch.float32, {}),
        (fastmax_attention, torch.float32, {"backend": "chunked"}),
    ):
        leaves = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        o = attend(*leaves, scale=1.0, order=order, is_causal=is_causal, **options)
        found.append([o.detach(), *torch.autograd.grad(o, leaves, do.to(dtype))])
    for name, exact, dense, summed in zip(("o", "dq", "dk", "dv"), *found, strict=True):
        if name == "dq" and noise == 0:  # it is zero
            continue
        size = exact.abs().max()
        assert (summed - exact).abs().max() / size < 5 * (dense - exact).abs().max() / size + 2e-6, name
