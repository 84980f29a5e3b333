"""Masks in the language of nn.MultiheadAttention: what they allow must survive recognition, or be refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fastmax.nn.masks import recognise


def meaning(keep: Tensor | None, is_causal: bool, batch: int, heads: int, queries: int, keys: int) -> Tensor:
    """Return (B, heads, Nq, Nk), True where attention is allowed."""
    allowed = torch.ones(batch, heads, queries, keys, dtype=torch.bool)
    allowed = allowed.tril() if is_causal else allowed
    return allowed if keep is None else allowed & keep


def written(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """As MultiheadAttention takes it: True, or -inf, where attention is not allowed."""
    return (
        ~allowed if dtype == torch.bool else torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, -torch.inf)
    )


@st.composite
def masks(draw: st.DrawFn) -> tuple[Tensor, bool, bool]:
    """Draw a mask of what is allowed, (B, heads, Nq, Nk), and two flags: one (Nq, Nk) suffices, there is padding."""
    batch, heads, queries, keys = (draw(st.integers(1, n)) for n in (3, 3, 5, 5))
    per_head = draw(st.booleans())
    keep = torch.tensor(draw(st.lists(st.booleans(), min_size=batch * heads * keys, max_size=batch * heads * keys)))
    keep = keep.reshape(batch, heads, 1, keys)
    keep = keep if per_head else keep[:1, :1].expand_as(keep)
    allowed = keep.expand(-1, -1, queries, -1)
    return (allowed.tril() if draw(st.booleans()) else allowed), not per_head, draw(st.booleans())


@given(masks(), st.sampled_from([torch.bool, torch.float32, torch.bfloat16]))
def test_what_is_allowed_survives(case: tuple[Tensor, bool, bool], dtype: torch.dtype) -> None:
    allowed, same_for_all, padded = case
    batch, heads, queries, keys = sizes = tuple(allowed.shape)
    mask = written(allowed, dtype)
    padding = torch.arange(batch * keys).reshape(batch, keys) % 3 == 0 if padded else None
    keep, is_causal = recognise(
        mask[0, 0] if same_for_all else mask.flatten(0, 1),
        padding,
        False,
        batch=batch,
        num_heads=heads,
        queries=queries,
        keys=keys,
    )
    expected = allowed if padding is None else allowed & ~padding[:, None, None, :]
    assert torch.equal(meaning(keep, is_causal, *sizes), expected)


@given(st.lists(st.booleans(), min_size=12, max_size=12))
def test_any_other_mask_is_refused(bits: list[bool]) -> None:
    allowed = torch.tensor(bits).reshape(3, 4)
    seen = allowed[-1:].expand(3, 4)
    call = {"batch": 1, "num_heads": 1, "queries": 3, "keys": 4}
    if torch.equal(allowed, seen) or torch.equal(allowed, seen.tril()):
        keep, is_causal = recognise(~allowed, None, False, **call)
        assert torch.equal(meaning(keep, is_causal, 1, 1, 3, 4)[0, 0], allowed)
    else:
        with pytest.raises(ValueError, match=r"attn_mask must be causal .* or both.*got a mask of shape \(3, 4\)"):
            recognise(~allowed, None, False, **call)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_square_mask_of_torch_is_causal(dtype: torch.dtype) -> None:
    mask = nn.Transformer.generate_square_subsequent_mask(6, dtype=dtype)
    assert recognise(mask, None, False, batch=2, num_heads=2, queries=6, keys=6) == (None, True)
    assert recognise(mask < 0, None, False, batch=None, num_heads=2, queries=6, keys=6) == (None, True)


def test_keys_beyond_the_last_query_need_no_mask_of_their_own() -> None:
    mask = ~torch.ones(3, 5, dtype=torch.bool).tril()
    assert recognise(mask, None, False, batch=1, num_heads=1, queries=3, keys=5) == (None, True)


def test_the_hint_is_trusted_and_needs_no_mask() -> None:
    call = {"batch": 1, "num_heads": 1, "queries": 3, "keys": 3}
    assert recognise(torch.full((3, 3), torch.nan), None, True, **call) == (None, True)
    assert recognise(None, None, True, **call) == (None, True)


def test_the_lowest_number_means_minus_infinity() -> None:
    padding = torch.tensor([[0.0, torch.finfo(torch.float32).min]])
    keep, _ = recognise(None, padding, False, batch=1, num_heads=1, queries=2, keys=2)
    assert keep is not None
    assert keep.flatten().tolist() == [True, False]


@pytest.mark.parametrize("other", [1.0, -1.0, -1e9, torch.inf, torch.nan])
def test_a_bias_is_refused(other: float) -> None:
    call = {"batch": 1, "num_heads": 1, "queries": 2, "keys": 2}
    bias = torch.tensor([[0.0, other], [0.0, 0.0]])
    with pytest.raises(ValueError, match=f"attn_mask must be 0 .* got {other}"):
        recognise(bias, None, False, **call)
    with pytest.raises(ValueError, match=f"key_padding_mask must be 0 .* got {other}"):
        recognise(None, bias[:1], False, **call)


def test_shapes_and_dtypes_are_checked() -> None:
    call = {"batch": 2, "num_heads": 3, "queries": 4, "keys": 5}
    with pytest.raises(ValueError, match=r"attn_mask must be of shape \(4, 5\) or \(6, 4, 5\), got \(2, 4, 5\)"):
        recognise(torch.zeros(2, 4, 5), None, False, **call)
    with pytest.raises(ValueError, match=r"key_padding_mask must be of shape \(2, 5\), got \(5,\)"):
        recognise(None, torch.zeros(5), False, **call)
    with pytest.raises(ValueError, match=r"attn_mask must be boolean or floating-point, got torch.uint8"):
        recognise(torch.zeros(4, 5, dtype=torch.uint8), None, False, **call)
    with pytest.raises(TypeError, match=r"key_padding_mask must be a torch.Tensor or None, got list"):
        recognise(None, [False], False, **call)


def test_no_queries() -> None:
    assert recognise(torch.zeros(0, 5), None, False, batch=1, num_heads=1, queries=0, keys=5) == (None, False)
