"""Softmax over a sliding window, in blocks, against the dense definition."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fastmax import window as module
from fastmax.window import windowed_softmax
from tests.support import assert_within_budget, randn, with_grads

B, D, DV = 2, 8, 6
SIZES = [  # tokens, window, tokens before the first query
    (1, 1, 0),
    (5, 3, 0),
    (64, 8, 0),
    (65, 8, 0),
    (100, 9, 0),
    (40, 50, 0),
    (40, 40, 0),
    (37, 1, 0),
    (37, 2, 0),
    (1, 10, 9),
    (1, 10, 25),
    (30, 10, 9),
    (31, 10, 30),
]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_BLOCK", 4)


def dense(
    q: Tensor, k: Tensor, v: Tensor, *, window: int, is_causal: bool = True, scale: float | None = None
) -> Tensor:
    queries, keys, groups = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    away = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
    near = (away >= 0) & (away < window) if is_causal else away.abs() < window
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ k.mT * (D**-0.5 if scale is None else scale)
    return scores.masked_fill(~near, -torch.inf).softmax(-1) @ v


def tokens(
    count: int, past: int = 0, heads: tuple[int, int] = (4, 2), dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    shapes = ((heads[0], count, D), (heads[1], past + count, D), (heads[1], past + count, DV))
    return [randn(B, *shape, dtype=dtype) for shape in shapes]


@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "both sides"])
@pytest.mark.parametrize(("count", "window", "past"), SIZES)
def test_it_is_the_dense_form(count: int, window: int, past: int, is_causal: bool) -> None:
    inputs, do = tokens(count, past), randn(B, 4, count, DV)
    for scale in (None, 0.7):
        options: dict[str, Any] = {"window": window, "is_causal": is_causal, "scale": scale}
        expected = with_grads(dense, inputs, do, **options)
        for got, wanted in zip(with_grads(windowed_softmax, inputs, do, **options), expected, strict=True):
            assert_within_budget(got, wanted, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_precisions(dtype: torch.dtype) -> None:
    inputs, do = tokens(100, dtype=dtype), randn(B, 4, 100, DV, dtype=dtype)
    exact = with_grads(dense, [x.double() for x in inputs], do.double(), window=9)
    plain = with_grads(dense, inputs, do, window=9)
    for got, wanted, rounded in zip(with_grads(windowed_softmax, inputs, do, window=9), exact, plain, strict=True):
        assert_within_budget(got, wanted, rounded)


@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "both sides"])
@pytest.mark.parametrize("past", [0, 7])
def test_hidden_tokens_take_no_place(is_causal: bool, past: int) -> None:
    """The rows are those of sequences without the hidden tokens; what these hold does not matter, and no gradient is NaN."""
    inputs, count = tokens(60, past), 60
    mask = torch.rand(B, past + count) < 0.7
    mask[0, past + 5 :] = False
    mask[0, past] = True
    options: dict[str, Any] = {"window": 8, "is_causal": is_causal}
    for x in inputs[1:]:
        x.masked_fill_(~mask[:, None, :, None], torch.nan)
    do = randn(B, 4, count, DV)
    o, dq, dk, dv = with_grads(windowed_softmax, inputs, do, key_mask=mask, **options)
    for row in range(B):
        kept = mask[row]
        own = kept[past:]
        alone = [x[row : row + 1, :, kept[-x.shape[2] :]] for x in inputs]
        wanted, *grads = with_grads(dense, alone, do[row : row + 1, :, own], **options)
        assert_within_budget(o[row : row + 1, :, own], wanted, wanted)
        for got, which, grad in zip((dq, dk, dv), (own, kept, kept), grads, strict=True):
            assert_within_budget(got[row : row + 1, :, which], grad, grad)
        assert not o[row, :, ~own].any()
        assert not any(got[row, :, ~which].any() for got, which in ((dq, own), (dk, kept), (dv, kept)))


def test_dropout_drops_weights_and_keeps_the_mean() -> None:
    q, k, v = tokens(50)
    v = torch.ones_like(v)
    o = torch.stack([windowed_softmax(q, k, v, window=9, dropout_p=0.3) for _ in range(200)])
    assert o.std() > 0.1
    torch.testing.assert_close(o.mean(), torch.ones((), dtype=torch.float64), rtol=0.02, atol=0)


class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
    """Records the largest tensor that is made."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, Tensor):
                self.largest = max(self.largest, x.untyped_storage().nbytes())
        return out


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_memory_is_linear_in_the_length(masked: bool) -> None:
    largest = []
    for count in (512, 1024):
        q, k, v = (x.requires_grad_() for x in tokens(count, dtype=torch.float32))
        mask = torch.rand(B, count) < 0.9 if masked else None
        with Sizes() as sizes:
            windowed_softmax(q, k, v, mask, window=16).sum().backward()
        largest.append(sizes.largest)
    assert largest[1] <= 2.1 * largest[0]
    assert largest[1] < 1024 * 1024 * 4
