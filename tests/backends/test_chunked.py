"""The chunked backend: what the conformance suite, whose sequences are short, does not show of it."""

import pytest
import torch

from fastmax import fastmax_attention


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
