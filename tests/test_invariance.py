"""Things that must not change the result: the future, padding, the cut of the work, a second call."""

import pytest
import torch

from tests.support import fastmax_attention, forced, randn

FORMS = [True, False]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dense", FORMS)
@pytest.mark.parametrize("order", [1, 2])
def test_the_future_does_not_leak(backend: str, order: int, dense: bool, dtype: torch.dtype) -> None:
    """Bit-identical up to i, whatever comes after it: other tokens, huge ones, none at all."""
    q, k, v = (randn(1, 2, 300, 8, dtype=dtype) for _ in range(3))
    with forced(dense=dense, chunk=64):
        before = fastmax_attention(q, k, v, is_causal=True, order=order, backend=backend)
        for i in (0, 1, 63, 64, 150, 298):
            changed = [x.clone() for x in (q, k, v)]
            for x in changed:
                x[..., i + 1 :, :] = randn(1, 2, 299 - i, 8, dtype=dtype) * 1e4
            after = fastmax_attention(*changed, is_causal=True, order=order, backend=backend)
            assert torch.equal(after[..., : i + 1, :], before[..., : i + 1, :]), i


@pytest.mark.parametrize("dense", FORMS)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("content", [1e30, float("nan"), float("inf")])
def test_padded_tokens_do_not_matter(backend: str, content: float, is_causal: bool, dense: bool) -> None:
    """Whatever padded keys hold: outputs, state and gradients are bit-identical, their own gradients zero."""
    q, k, v = (randn(2, 2, 150, 8, dtype=torch.float32) for _ in range(3))
    mask = torch.rand(2, 1, 1, 150) > 0.3
    mask[0, ..., 0] = False
    results = []
    for fill in (0.5, content):
        padded = [torch.where(mask.mT, x, fill).requires_grad_() for x in (k, v)]
        x = q.clone().requires_grad_()
        with forced(dense=dense):
            o, state = fastmax_attention(x, *padded, mask, is_causal=is_causal, return_state=True, backend=backend)
            grads = torch.autograd.grad(o.square().sum() + state.square().sum(), (x, *padded))
        assert all((g.masked_select(~mask.mT) == 0).all() for g in grads[1:])
        results.append([o, state, *grads])
    for a, b in zip(*results, strict=True):
        assert torch.isfinite(a).all()
        assert torch.equal(a, b)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_the_cut_of_the_work_does_not_matter(order: int, is_causal: bool) -> None:
    q, k, v = (randn(2, 3, 70, 5, grad=True) for _ in range(3))
    results = []
    for dense, chunk, budget, tile in [
        (False, 64, 1 << 21, 256),
        (False, 1, 1, 1),
        (False, 7, 999, 5),
        (True, 9, 1, 16),
    ]:
        with forced(dense=dense, chunk=chunk, budget=budget, tile=tile):
            o = fastmax_attention(q, k, v, is_causal=is_causal, order=order, backend="chunked")
            results.append([o, *torch.autograd.grad(o.square().sum(), (q, k, v))])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("is_causal", [False, True])
def test_the_same_call_gives_the_same_bits(backend: str, is_causal: bool, threads: int) -> None:
    q, k, v = (randn(1, 1, 1500, 16, dtype=torch.float32).requires_grad_() for _ in range(3))
    torch.set_num_threads(threads)
    try:
        runs = []
        for _ in range(3):
            o = fastmax_attention(q, k, v, is_causal=is_causal, backend=backend)
            runs.append([o, *torch.autograd.grad(o.square().sum(), (q, k, v))])
    finally:
        torch.set_num_threads(1)
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], other, strict=True))


def test_a_quarter_million_tokens_in_fp32_stay_exact(backend: str) -> None:
    """Sums over a long sequence do not lose the precision that the dense form would keep."""
    q, k, v = (randn(1, 1 << 18, 4, dtype=torch.float32) for _ in range(3))
    o = fastmax_attention(q, k, v + 1, is_causal=True, backend=backend)[:, -500:]
    expected = fastmax_attention(q.double(), k.double(), v.double() + 1, is_causal=True, backend=backend)[:, -500:]
    assert ((o - expected).norm() / expected.norm()).item() < 1e-5
