"""Dropout: exact against the dense oracle with the same masks, replayed in the backward pass, independent of every cut."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import fastmax
from fastmax import dropout, ops, reference_attention
from fastmax.backends import native
from fastmax.call import Call, Options
from fastmax.core import similarity, standardize
from tests.support import fastmax_attention, fastmax_varlen_attention, forced, gradcheck, randn, with_grads

MODES = pytest.mark.parametrize("mode", dropout.MODES)
CAUSAL = pytest.mark.parametrize("is_causal", [False, True])
ORDERS = pytest.mark.parametrize("order", [1, 2])


def seeded(f: Any, **options: Any) -> Any:
    """f from the same state of the generator each time."""

    def call(*x: Tensor) -> Any:
        torch.manual_seed(7)
        return f(*x, **options)

    return call


@MODES
@CAUSAL
@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("dense", [True, False])
def test_it_is_exact(mode: str, order: int, is_causal: bool, dense: bool, backend: str) -> None:
    """GQA, padding, scales per head, lengths that are no multiple of anything; outputs and gradients."""
    q, k, v, scale = randn(2, 4, 37, 3), randn(2, 2, 41, 3), randn(2, 2, 41, 5), torch.rand(4).double() / 8
    options: dict[str, Any] = {"attn_mask": torch.rand(2, 1, 1, 41) > 0.2, "is_causal": is_causal, "order": order}
    options |= {"enable_gqa": True, "dropout_p": 0.3, "dropout_mode": mode}
    chosen = {"backend": backend}

    def actual(q: Tensor, k: Tensor, v: Tensor, scale: Tensor) -> Tensor:
        return seeded(fastmax_attention, scale=scale, **options, **chosen)(q, k, v)

    def expected(q: Tensor, k: Tensor, v: Tensor, scale: Tensor) -> Tensor:
        return seeded(reference_attention, scale=scale, **options)(q, k, v)

    do = randn(2, 4, 37, 5)
    with forced(dense=dense, chunk=8, budget=1, tile=7):
        results = with_grads(actual, [q, k, v, scale], do)
    for a, b in zip(results, with_grads(expected, [q, k, v, scale], do), strict=True):
        torch.testing.assert_close(a, b)


@MODES
@CAUSAL
@ORDERS
def test_gradcheck(mode: str, order: int, is_causal: bool, backend: str) -> None:
    q, k, v = randn(1, 2, 5, 2, grad=True), randn(1, 1, 4, 2, grad=True), randn(1, 1, 4, 3, grad=True)
    options = {"is_causal": is_causal, "order": order, "scale": 0.2, "dropout_p": 0.3, "dropout_mode": mode}
    options["backend"] = backend
    with forced(budget=1):
        assert gradcheck(seeded(fastmax_attention, enable_gqa=True, return_state=True, **options), (q, k, v))


@MODES
def test_packed_sequences_and_masks(mode: str, backend: str) -> None:
    """Positions count through the packed batch: sequences have masks of their own, which agree with the whole's."""
    q, k, v = randn(9, 2, 3, grad=True), randn(10, 2, 3, grad=True), randn(10, 2, 5, grad=True)
    ends_q, ends_k = torch.tensor([0, 5, 9]), torch.tensor([0, 7, 10])
    options = {"dropout_p": 0.4, "dropout_mode": mode, "scale": 0.3, "backend": backend}
    mask = torch.rand(10) > 0.2
    o = seeded(fastmax_varlen_attention, is_causal=True, **options)(q, k, v, ends_q, ends_k, mask)
    torch.manual_seed(7)
    seed = dropout.new_seed(q.device)
    m_q, m_k = (dropout.multipliers(mode, 0.4, seed, side, (2,), n, 3, 2) for side, n in ((0, 9), (1, 10)))
    assert m_q.shape == ((2, 9, 1) if mode == "1d" else (2, 9, 10))
    assert not torch.equal(m_q[0], m_q[1])
    assert not torch.equal(m_q[:, :5], m_k[:, :5])
    if mode == "1d":  # then the oracle is a plain one on masked tokens
        q_hat, k_hat = standardize(q.transpose(0, 1)) * m_q, standardize(k.transpose(0, 1)) * m_k
        for at_q, at_k in ((slice(0, 5), slice(0, 7)), (slice(5, 9), slice(7, 10))):
            values, valid = v.transpose(0, 1)[:, at_k], mask[at_k]
            expected = reference_attention(
                q_hat[:, at_q], k_hat[:, at_k], values, valid, is_causal=True, scale=0.3, normalize=False
            )
            torch.testing.assert_close(o[at_q].transpose(0, 1), expected)
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(o.sum(), (q, k, v)))


@MODES
@CAUSAL
def test_the_cut_of_the_work_does_not_matter(mode: str, is_causal: bool) -> None:
    q, k, v = (randn(2, 3, 70, 4) for _ in range(3))
    f = seeded(fastmax_attention, is_causal=is_causal, dropout_p=0.2, dropout_mode=mode)
    expected = f(q, k, v)
    for chunk, budget, tile in ((3, 1, 5), (64, 1000, 16)):
        with forced(dense=False, chunk=chunk, budget=budget, tile=tile):
            torch.testing.assert_close(f(q, k, v), expected)


@MODES
def test_rate_zero_is_bit_identical(backend: str, mode: str) -> None:
    q, k, v = (randn(2, 300, 8, dtype=torch.float32) for _ in range(3))
    plain = fastmax_attention(q, k, v, is_causal=True, backend=backend)
    assert torch.equal(
        fastmax_attention(q, k, v, dropout_p=0.0, dropout_mode=mode, is_causal=True, backend=backend), plain
    )


def test_order_1_has_nothing_quadratic_to_drop() -> None:
    q, k, v = (randn(2, 9, 4) for _ in range(3))
    o = fastmax_attention(q, k, v, dropout_p=0.5, order=1)
    torch.testing.assert_close(o, fastmax_attention(q, k, v, order=1))


@pytest.mark.parametrize("mode", ["standard", "quadratic"])
def test_the_expected_numerator_is_the_undropped_one(mode: str) -> None:
    q, k, v = randn(1, 1, 3, 3), randn(1, 1, 6, 3), randn(1, 1, 6, 2)
    expected = similarity(standardize(q) @ standardize(k).mT, 2) @ v
    total, count = torch.zeros_like(expected), 3000
    squares = torch.zeros_like(expected)
    for _ in range(count):
        options = Options(scale=1.0, dropout_p=0.25, dropout_mode=mode, backend="chunked", out_dtype=torch.float64)
        o, g, _ = ops.forward(*Call(q, k, v, dropout_seed=dropout.new_seed(q.device), options=options).flatten())
        numerator = o * g.unsqueeze(-1)
        total += numerator
        squares += numerator**2
    mean = total / count
    deviation = ((squares / count - mean**2) / count).sqrt()
    assert deviation.min() > 0, "nothing was dropped"
    assert ((mean - expected) / deviation).abs().max() < 4.5


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_masks_are_independent_and_of_the_rate(rate: float) -> None:
    """Across tokens, features, heads, sides and seeds: the correlation of what is kept is noise."""
    masks = torch.stack(
        [
            dropout.multipliers("standard", rate, torch.tensor(seed), side, (2,), 512, 8, 2)[..., 1:] > 0
            for seed in (0, 1)
            for side in (0, 1)
        ]
    ).double()
    assert masks.mean().item() == pytest.approx(1 - rate, abs=0.005)
    x = (masks - (1 - rate)) / (rate * (1 - rate)) ** 0.5
    pairs = [x[0] * x[1], x[0] * x[2], x[:, 0] * x[:, 1], x[..., 1:] * x[..., :-1]]
    pairs += [x[:, :, lag:] * x[:, :, :-lag] for lag in (1, 2, 3, 4, 8, 64)]
    for product in pairs:
        assert abs(product.mean().item()) < 4.5 / product.numel() ** 0.5
    assert x.mean((0, 1, 2)).abs().max() < 0.1
    assert x.mean((0, 1, 3)).abs().max() < 0.4


def test_a_new_call_draws_a_new_mask_and_the_generator_governs_it() -> None:
    q, k, v = (randn(2, 9, 4) for _ in range(3))
    f = seeded(fastmax_attention, dropout_p=0.3)
    first, again = f(q, k, v), fastmax_attention(q, k, v, dropout_p=0.3)
    assert not torch.equal(first, again)
    assert torch.equal(first, f(q, k, v))


@MODES
def test_checkpointing_replays_the_masks(mode: str) -> None:
    q, k, v = (randn(2, 9, 4, grad=True) for _ in range(3))

    def f(*x: Tensor) -> Tensor:
        return fastmax_attention(*x, dropout_p=0.3, dropout_mode=mode, is_causal=True)

    torch.manual_seed(1)
    expected = torch.autograd.grad(f(q, k, v).sum(), (q, k, v))
    torch.manual_seed(1)
    actual = torch.autograd.grad(checkpoint(f, q, k, v, use_reentrant=False).sum(), (q, k, v))
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


@MODES
def test_compiled_forward_and_backward_agree(mode: str) -> None:
    """The gradient that the compiled graph returns is that of the very masks of its forward pass."""
    torch.compiler.reset()
    q, k, v = (randn(2, 9, 4, grad=True) for _ in range(3))

    @torch.compile(fullgraph=True, backend="aot_eager")
    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return fastmax.fastmax_attention(q, k, v, dropout_p=0.3, dropout_mode=mode, is_causal=True)

    o = f(q, k, v)
    # o is linear in v: its change along any direction is the gradient's projection, for the same masks only
    (dv,) = torch.autograd.grad(o.sum(), v)
    torch.testing.assert_close((dv * v).sum(), o.sum())
    assert not torch.equal(f(q, k, v), o)
    torch.compiler.reset()


@pytest.mark.skipif(not native.levels(), reason=native.describe())
def test_every_backend_drops_the_same_and_says_what_it_cannot() -> None:
    q, k, v = (randn(2, 70, 6) for _ in range(3))
    for mode in dropout.MODES:
        results = [
            seeded(fastmax_attention, dropout_p=0.3, dropout_mode=mode, backend=x)(q, k, v)
            for x in ("native", "chunked")
        ]
        torch.testing.assert_close(*results)
    assert fastmax_attention(q, k, v, dropout_p=0.3, order=3).shape == (2, 70, 6)
    with pytest.raises(ValueError, match="order 3 has only the dense form in it, which forms no features to drop"):
        fastmax_attention(q, k, v, dropout_p=0.3, order=3, backend="native")
    assert fastmax_attention(q, k, v, dropout_p=0.3, dropout_mode="1d", order=3, backend="native").shape == (2, 70, 6)


@pytest.mark.parametrize(
    ("mode", "error", "message"),
    [("cubic", ValueError, "one of standard, 1d, quadratic, got 'cubic'"), (2, TypeError, "must be a string, got int")],
)
@pytest.mark.parametrize("f", [fastmax_attention, reference_attention])
def test_a_mode_that_is_none(f: Any, mode: Any, error: type[Exception], message: str) -> None:
    q = randn(9, 4)
    with pytest.raises(error, match=f"dropout_mode must be {message}|dropout_mode {message}"):
        f(q, q, q, dropout_p=0.1, dropout_mode=mode)
