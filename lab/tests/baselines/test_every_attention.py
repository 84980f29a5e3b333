"""Properties of every attention: shapes, padding that is never seen, gradients, short and odd lengths, repeatability."""

import pytest
import torch
from torch import Tensor

from fastmax_lab.baselines import NAMES, BaselineOptions
from fastmax_lab.baselines.interface import Attention
from fastmax_lab.baselines.registry import attention
from tests.support import randn

HEADS, D, MAX_LENGTH = 2, 8, 64


def made(name: str, **options: object) -> Attention:
    torch.manual_seed(1)
    small = BaselineOptions(performer_features=16, reformer_chunk=8, informer_factor=1.5, **options)
    return attention(name, head_dim=D, num_heads=HEADS, max_length=MAX_LENGTH, options=small).double().eval()


def inputs(batch: int, length: int) -> list[Tensor]:
    return [randn(batch, HEADS, length, D) for _ in range(3)]


def masked(lengths: list[int], padded: int) -> Tensor:
    return torch.arange(padded) < torch.tensor(lengths)[:, None]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 31, 64])
def test_any_length(name: str, length: int) -> None:
    q, k, v = inputs(2, length)
    o = made(name)(q, k, v)
    assert o.shape == v.shape
    assert o.isfinite().all()
    if length == 1:
        torch.testing.assert_close(o, v)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("garbage", [0.0, 1e3])
def test_padding_never_changes_real_tokens(name: str, training: bool, garbage: float) -> None:
    """Each sequence alone, and in a batch with longer ones, padded with anything to any length: outputs and gradients."""
    layer = made(name).train(training)
    lengths = [5, 17, 30]
    for padded in (30, 41, 64):
        q, k, v = inputs(3, padded)
        mask = masked(lengths, padded)
        batch = [torch.where(mask[:, None, :, None], x, garbage).requires_grad_() for x in (q, k, v)]
        do = randn(3, HEADS, padded, D)
        torch.manual_seed(2)
        o = layer(*batch, mask)
        torch.where(mask[:, None, :, None], o * do, 0).sum().backward()
        for i, n in enumerate(lengths):
            alone = [x[i : i + 1, :, :n].clone().requires_grad_() for x in (q, k, v)]
            torch.manual_seed(2)
            expected = layer(*alone)
            (expected * do[i : i + 1, :, :n]).sum().backward()
            torch.testing.assert_close(o[i : i + 1, :, :n], expected, rtol=1e-10, atol=1e-12)
            for whole, part in zip(batch, alone, strict=True):
                if part.grad is None:
                    assert layer.shares_keys
                    assert whole.grad is None
                    continue
                assert whole.grad is not None
                torch.testing.assert_close(whole.grad[i : i + 1, :, :n], part.grad, rtol=1e-9, atol=1e-11)
                assert not whole.grad[i, :, n:].any(), "padding has no gradient"


@pytest.mark.parametrize("name", NAMES)
def test_padding_may_hold_anything(name: str) -> None:
    layer = made(name)
    q, k, v = inputs(1, 21)
    mask = masked([13], 21)
    filled = [torch.where(mask[:, None, :, None], x, torch.nan) for x in (q, k, v)]
    expected = layer(*(x[:, :, :13] for x in (q, k, v)))
    torch.testing.assert_close(layer(*filled, mask)[:, :, :13], expected)


@pytest.mark.parametrize("name", NAMES)
def test_a_mask_of_real_tokens_is_no_mask(name: str) -> None:
    q, k, v = inputs(2, 19)
    layer = made(name)
    torch.testing.assert_close(layer(q, k, v, torch.ones(2, 19, dtype=torch.bool)), layer(q, k, v))


@pytest.mark.parametrize("name", NAMES)
def test_a_sequence_of_padding_alone_is_finite(name: str) -> None:
    q, k, v = (x.requires_grad_() for x in inputs(2, 9))
    o = made(name)(q, k, v, masked([9, 0], 9))
    assert o.isfinite().all()
    o[0].sum().backward()
    assert all(x.grad is None or x.grad.isfinite().all() for x in (q, k, v))


@pytest.mark.parametrize("name", NAMES)
def test_gradients(name: str) -> None:
    """Compare with finite differences. The choices of Reformer and Informer are constant in between."""
    q, k, v = (randn(1, HEADS, 11, D, grad=True) for _ in range(3))
    layer = made(name)
    mask = masked([9], 11)
    q_only = (lambda q, v: layer(q, q, v, mask)[:, :, :9]) if layer.shares_keys else None
    if q_only is not None:
        torch.autograd.gradcheck(q_only, (q, v))
    else:
        torch.autograd.gradcheck(lambda q, k, v: layer(q, k, v, mask)[:, :, :9], (q, k, v))


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_repeats_itself(name: str) -> None:
    q, k, v = inputs(1, 33)
    layer = made(name, dropout=0.5)
    assert torch.equal(layer(q, k, v), layer(q, k, v))


@pytest.mark.parametrize("name", ["softmax", "vanilla", "fastmax1", "fastmax2", "released", "reformer", "informer"])
def test_dropout_acts_in_training_only(name: str) -> None:
    q, k, v = inputs(1, 33)
    layer = made(name, dropout=0.5, dropout_mode="standard")
    still = layer(q, k, v)
    layer.train()
    torch.manual_seed(3)
    dropped = layer(q, k, v)
    torch.manual_seed(3)
    assert torch.equal(dropped, layer(q, k, v)), "torch's generator governs it"
    assert not torch.allclose(dropped, still)


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"one of softmax, .*, got 'flash'"):
        attention("flash", head_dim=4, num_heads=1, max_length=8)
