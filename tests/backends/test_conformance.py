"""Every backend, at every level and in both forms, against the definition."""

from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fastmax import backends, dropout
from fastmax.backends import native
from fastmax.call import Call, OutputGrads
from fastmax.core import normalized, standardize
from fastmax.features import feature_count
from fastmax.plan import Plan
from tests.backends.conformance import (
    DTYPES,
    LAYOUTS,
    RefusedError,
    Variant,
    calls,
    check,
    make,
    output_grads,
    run,
    threads,
    to_device,
    tokens,
    variants,
)  # fmt: skip
from tests.backends.interpreter import MISSING
from tests.support import assert_within_budget, randn

each = pytest.mark.parametrize("variant", variants())


def check_or_skip(variant: Variant, call: Call, *more: Any) -> None:
    try:
        check(variant, call, *more)
    except RefusedError as reason:
        pytest.skip(str(reason))


def run_or_skip(variant: Variant, call: Call, grads: OutputGrads) -> dict[str, torch.Tensor]:
    try:
        return run(variant, *to_device(call, grads, variant.device))
    except RefusedError as reason:
        pytest.skip(str(reason))


@each
@settings(max_examples=25)
@given(case=calls(), workers=st.integers(1, 3), chunk=st.sampled_from([None, 32, 7]))
def test_any_call(variant: Variant, case: tuple[Call, OutputGrads], workers: int, chunk: int | None) -> None:
    with threads(workers):
        try:
            check(variant, *case, variant.plan._replace(chunk=chunk, dense_tile=chunk))
        except RefusedError:
            assume(False)


@each
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_every_order(variant: Variant, order: int, is_causal: bool) -> None:
    q, k, v = randn(1, 4, 90, 5), randn(1, 2, 90, 5), randn(1, 2, 90, 7)
    check_or_skip(variant, make(q, k, v, order=order, is_causal=is_causal))


@each
@pytest.mark.parametrize("normalize", ["standardize", "rms", "none"])
def test_every_normalization(variant: Variant, normalize: str) -> None:
    q, k, v = (randn(1, 2, 70, 9) for _ in range(3))
    k[:, :, 3] = 2.5  # constant
    check_or_skip(variant, make(q, k, v, normalize=normalize, is_causal=True))


@each
@pytest.mark.parametrize("dtypes", DTYPES)
def test_every_dtype(variant: Variant, dtypes: str) -> None:
    *inputs, out = DTYPES[dtypes]
    q, k, v = (randn(2, 2, 90, n, dtype=dtype) for n, dtype in zip((20, 20, 13), inputs, strict=True))
    wide = torch.float64 if torch.float64 in inputs else torch.float32
    log_decay = -torch.rand(2, 2, 90).to(wide)
    check(variant, make(q, k, v, out_dtype=out, is_causal=True, log_decay=log_decay))


@each
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(variant: Variant, layout: str) -> None:
    q, k, v = (tokens(layout, 2, heads, 40, n) for heads, n in ((4, 9), (2, 9), (2, 5)))
    mask = tokens(layout, 2, 1, 40, 1)[..., 0] > -0.5
    log_decay = -tokens(layout, 2, 2, 40, 1)[..., 0].abs().mul(mask)
    call = make(q, k, v, is_causal=True, key_mask=mask, log_decay=log_decay)
    o = tokens(layout, 2, 4, 40, 5)
    check(variant, call, OutputGrads(o, tokens(layout, 2, 4, 40, 1)[..., 0], None))


@each
@pytest.mark.parametrize("dim", [32, 64, 128])
def test_the_usual_head_sizes_in_fp32(variant: Variant, dim: int) -> None:
    """Over several chunks, the last of them not whole."""
    for is_causal in (False, True):
        q, k, v = (randn(1, 1, 300, dim, dtype=torch.float32) for _ in range(3))
        check(variant, make(q, k, v, is_causal=is_causal))


@each
@pytest.mark.parametrize("keys", ["apart", "one", "the same", "a cluster", "two clusters"])
def test_half_precision_where_terms_cancel(variant: Variant, keys: str) -> None:
    """Few keys, or keys that are alike, at scale 1: weights near 1/2 among terms of D² / 2."""
    q, k, v = (randn(1, 2, 99, 64) for _ in range(3))
    if keys == "one":
        k, v = k[:, :, :1], v[:, :, :1]
    elif keys == "the same":
        k = k[:, :, :1].expand_as(k)
    elif keys != "apart":
        middles = k[:, :, : 1 if keys == "a cluster" else 2].repeat(1, 1, 99, 1)[:, :, :99]
        k = middles + 0.05 * k
    for dtype in (torch.bfloat16, torch.float16):
        for is_causal in (False, True):
            halves = [x.to(dtype) for x in (q, k, v + 1)]
            check_or_skip(variant, make(*halves, scale=1.0, is_causal=is_causal))


ABOUT_THE_MEAN = [each for each in variants() if each.values[0].sums_about_the_mean(order=2)]


@pytest.mark.parametrize("variant", ABOUT_THE_MEAN)
@pytest.mark.parametrize("kind", ["causal", "unmasked", "decay"])
@pytest.mark.parametrize("noise", [1e-3, 0.0], ids=["alike", "identical"])
def test_fp32_sums_of_keys_that_are_alike(variant: Variant, noise: float, kind: str) -> None:
    """About zero, a small weight is what is left of terms of order D²: off by 7e-5, and the gradient of q by 1e-3."""
    for dim, order, groups in ((16, 1, 1), (16, 2, 2), (64, 1, 1), (64, 2, 1)):
        q, k, v = (torch.randn(1, heads, 300, dim) for heads in (2 * groups, 2, 2))
        middle = torch.randn(1, 2, 1, dim)
        if order == 1:  # where weights are positive
            q *= (q * standardize(middle)).sum(-1, keepdim=True).sign()
        k = middle + noise * k
        log_decay = -0.02 * torch.rand(1, 2, 300) if kind == "decay" else None
        for scale in (1.0, dim**-0.5) if variant.sums_about_the_mean(order) else (dim**-0.5, 1 / dim):
            call = make(q, k, v, order=order, scale=scale, is_causal=kind != "unmasked", log_decay=log_decay)
            check_or_skip(variant, call, OutputGrads(torch.randn(q.shape), None, None))


@pytest.mark.parametrize("variant", ABOUT_THE_MEAN)
def test_a_key_far_from_all_others_costs_them_no_digits(variant: Variant) -> None:
    """It makes most of a mean, and has faded before the others are read."""
    q, k, v = (torch.randn(1, 1, 300, 16) for _ in range(3))
    k[:, :, 0] *= 300
    log_decay = torch.full((1, 1, 300), -0.05).index_fill(2, torch.tensor(1), -80)
    call = make(q, k, v, normalize="none", scale=0.25, is_causal=True, log_decay=log_decay)
    check(variant, call, OutputGrads(torch.randn(q.shape), None, None), variant.plan._replace(chunk=64))


@each
@pytest.mark.parametrize("mode", dropout.MODES)
@pytest.mark.parametrize("dim", [5, 20])
def test_dropout_keeps_what_it_says(variant: Variant, mode: str, dim: int) -> None:
    """Whole masks, exactly: the features of every single query and key, in rows and in columns."""
    n, rate, seed = 37, 0.3, torch.tensor(2**62 + 5)
    features = feature_count(dim, 2)
    ones, values = (torch.ones(1, 2, n, size, dtype=torch.float64) for size in (dim, features))
    # each feature is a column of the state that a query reads, the denominator is the constant one
    state = torch.eye(features, features + 1, dtype=torch.float64).index_fill(1, torch.tensor(features), 0)
    state[0, -1] = 1
    each_alone = torch.arange(n + 1)
    call = make(
        ones, ones, values, normalize="none", scale=1.0, dropout_p=rate, dropout_mode=mode, dropout_seed=seed,
        return_state=True, cu_seqlens_q=each_alone, cu_seqlens_k=each_alone, state_in=state.expand(n, 2, -1, -1),
    )  # fmt: skip
    blank = [torch.zeros_like(x) for x in call.new_outputs()]
    unseen = call.key_mask = torch.zeros(1, 1, n, dtype=torch.bool)
    read = run_or_skip(variant, call, OutputGrads(None, blank[1] + 1, None))
    call.key_mask = ~unseen
    call.state_in = None
    summed = run_or_skip(variant, call, OutputGrads(None, None, None))
    plain = torch.cat([torch.ones(1 + dim), torch.triu_indices(dim, dim).diff(dim=0)[0].eq(0) * (0.5**0.5 - 1) + 1])
    degrees = torch.tensor([0] + [1] * dim + [2] * (features - 1 - dim))
    masks = [dropout.multipliers(mode, rate, seed, side, (2,), n, dim, 2) for side in (0, 1)]
    q, k = ((m**degrees if mode == "1d" else m) * plain for m in masks)
    found = {"state": (k, summed["state"][..., -1].transpose(0, 1))}
    found |= {"o": (q, read["o"][0]), "d_state_in": (q, read["d_state_in"][..., -1].transpose(0, 1))}
    for name, (expected, actual) in found.items():
        assert torch.equal(actual.cpu() != 0, expected != 0), name
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-6, atol=0)


@each
@pytest.mark.parametrize("mode", dropout.MODES)
@pytest.mark.parametrize("is_causal", [False, True])
def test_dropout_in_the_usual_head_sizes(variant: Variant, mode: str, is_causal: bool) -> None:
    for dim, order in ((32, 2), (64, 1)):
        q, k, v = (randn(1, 2, 150, dim, dtype=torch.float32) for _ in range(3))
        options: dict[str, Any] = {"order": order, "scale": 0.1 / dim, "is_causal": is_causal, "return_state": True}
        check_or_skip(variant, make(q, k, v, dropout_p=0.1, dropout_mode=mode, dropout_seed=torch.tensor(3), **options))


EMPTY = [(0, 2, 3, 3), (2, 0, 3, 3), (1, 2, 0, 3), (1, 2, 3, 0), (1, 2, 0, 0), (1, 2, 1, 1), (1, 2, 1, 5)]


@pytest.fixture
def _nan_in_fresh_memory() -> Any:
    torch.use_deterministic_algorithms(True)  # which fills what torch.empty returns
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_nan_in_fresh_memory")
@each
@pytest.mark.parametrize(("batch", "heads", "queries", "keys"), EMPTY)
def test_little_or_nothing(variant: Variant, batch: int, heads: int, queries: int, keys: int) -> None:
    for is_causal in (False, True):
        for has_state in (False, True):
            q, k, v = randn(batch, heads, queries, 4), randn(batch, heads, keys, 4), randn(batch, heads, keys, 3)
            more: dict[str, Any] = {"head_scale": torch.ones(heads, dtype=torch.float64), "return_state": has_state}
            if has_state:
                more["state_in"] = randn(batch, heads, 15, 4).index_fill(2, torch.tensor(0), 50.0)
            if is_causal and queries == keys:
                more["log_decay"] = torch.full((batch, heads, keys), -0.5, dtype=torch.float64)
            check(variant, make(q, k, v, is_causal=is_causal, **more))


@pytest.mark.usefixtures("_nan_in_fresh_memory")
@each
@pytest.mark.parametrize("ends", [[0], [0, 0], [0, 0, 5, 5, 9, 9]], ids=str)
def test_empty_sequences(variant: Variant, ends: list[int]) -> None:
    q, k, v = randn(1, 4, ends[-1], 3), randn(1, 2, ends[-1], 3), randn(1, 2, ends[-1], 5)
    cu = torch.tensor(ends, dtype=torch.int32)
    state = randn(len(ends) - 1, 2, 10, 6).index_fill(2, torch.tensor(0), 50.0)
    decay = -torch.rand(1, 2, ends[-1], dtype=torch.float64)
    more: dict[str, Any] = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "is_causal": True, "log_decay": decay}
    check(variant, make(q, k, v, **more))
    check(variant, make(q, k, v, state_in=state, return_state=True, **more))
    check_or_skip(variant, make(q, k, v, **more, dropout_p=0.3, dropout_seed=torch.tensor(1), scale=0.03))


def everything(variant: Variant, call: Call, seed: int = 1) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return run_or_skip(variant, *variant.adapted(call, output_grads(call)))


@each
@pytest.mark.parametrize("is_causal", [False, True])
def test_same_inputs_same_bits(variant: Variant, is_causal: bool) -> None:
    q, k, v = (randn(1, 2, 500, 16, dtype=torch.float32) for _ in range(3))
    decay = {"log_decay": -torch.rand(1, 2, 500) / 50} if is_causal else {}
    call = make(q, k, v, is_causal=is_causal, head_scale=torch.rand(2), **decay)
    for workers in variant.workers(1, 2, 3):
        with threads(workers):
            first = everything(variant, call)
            for _ in range(2):
                again = everything(variant, call)
                assert all(torch.equal(first[name], again[name]) for name in first), workers


@each
@pytest.mark.parametrize("decays", [False, True])
@pytest.mark.parametrize("mode", [None, "standard"])
def test_the_future_does_not_leak(variant: Variant, decays: bool, mode: str | None) -> None:
    """Bit for bit, whatever comes after: other tokens, huge ones, other decays.

    Later decays and values decide how the native kernel splits exponents and which keys it leaves out: with decays they may
    change its rounding.
    """
    options: dict[str, Any] = {"is_causal": True}
    if mode is not None:
        options |= {"dropout_p": 0.1, "dropout_mode": mode, "dropout_seed": torch.tensor(4)}
    q, k, v = (randn(1, 1, 300, 24, dtype=torch.float32) for _ in range(3))
    decay = -torch.rand(1, 1, 300) / 10
    for workers in variant.workers(1, 3):
        with threads(workers):
            before = everything(variant, make(q, k, v, log_decay=decay if decays else None, **options))["o"]
            for i in (0, 15, 64, 200):
                changed = [x.clone() for x in (q, k, v)]
                for x in changed:
                    x[..., i + 1 :, :] = 1e4 * randn(1, 1, 299 - i, 24)
                other = decay.clone()
                other[..., i + 1 :] = -50.0
                after = everything(variant, make(*changed, log_decay=other if decays else None, **options))["o"]
                after, expected = (x[..., : i + 1, :] for x in (after, before))
                if decays and variant.name == "native":
                    torch.testing.assert_close(after, expected, rtol=1e-6, atol=1e-6)
                else:
                    assert torch.equal(after, expected), (i, workers)


@each
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("decays", [False, True])
@pytest.mark.parametrize("mode", [None, "standard"])
def test_a_later_value_that_is_not_finite_does_not_leak(
    variant: Variant, mode: str | None, decays: bool, dtype: torch.dtype
) -> None:
    """Bit for bit, where the products are those of the inputs' own precision. Zero times inf is NaN."""
    if variant.name == "triton":
        pytest.skip("its tiles multiply the values that causality hides by zero, as docs/faq.md says")
    options: dict[str, Any] = {"is_causal": True}
    if mode is not None:
        options |= {"dropout_p": 0.1, "dropout_mode": mode, "dropout_seed": torch.tensor(4)}
    if decays:
        options["log_decay"] = (-torch.rand(1, 1, 300) / 10).to(torch.promote_types(dtype, torch.float32))
    q, k, v = randn(1, 2, 300, 24, dtype=dtype), randn(1, 1, 300, 24, dtype=dtype), randn(1, 1, 300, 20, dtype=dtype)
    before = everything(variant, make(q, k, v, **options))["o"]
    for i in (0, 15, 16, 63, 64, 130, 255, 299):
        for content in (torch.inf, -torch.inf, torch.nan):
            changed = v.clone()
            changed[..., i, 3] = content
            o = everything(variant, make(q, k, changed, **options))["o"]
            if dtype == torch.bfloat16:
                assert_within_budget(o[..., :i, :], before[..., :i, :].double(), before[..., :i, :])
            else:
                assert torch.equal(o[..., :i, :], before[..., :i, :]), (i, content)
            assert not o[..., i:, 3].isfinite().any()
            others = [channel for channel in range(20) if channel != 3]
            torch.testing.assert_close(o[..., others], before[..., others])


@each
@pytest.mark.parametrize("is_causal", [False, True])
def test_padding_does_not_matter(variant: Variant, is_causal: bool) -> None:
    """Bit for bit, whatever a key that does not count holds; its own gradients are zero."""
    q, k, v = (randn(2, 1, 200, 24, dtype=torch.float32) for _ in range(3))
    mask = torch.rand(2, 1, 200) < 0.6
    mask[:, :, :2] = False
    decay = {"log_decay": torch.where(mask, -torch.rand(2, 1, 200) / 10, 0)} if is_causal else {}
    for workers in variant.workers(1, 3):
        results = []
        for content in (0.0, 1e30, torch.nan):
            padded = [torch.where(mask.unsqueeze(-1), x, content) for x in (k, v)]
            call = make(q, *padded, is_causal=is_causal, key_mask=mask, return_state=True, **decay)
            with threads(workers):
                results.append(everything(variant, call))
        first = results[0]
        for other in results[1:]:
            assert all(torch.equal(first[name], other[name]) for name in first)
        assert (first["d_k"].cpu()[~mask] == 0).all()
        assert (first["d_v"].cpu()[~mask] == 0).all()
        if is_causal:  # the first two queries have no key at all
            assert (first["o"][:, :, :2] == 0).all()
            assert (first["g"][:, :, :2] == 0).all()


@each
def test_the_cut_of_the_work_does_not_matter(variant: Variant) -> None:
    q, k, v = randn(2, 4, 130, 5), randn(2, 2, 130, 5), randn(2, 2, 130, 4)
    call = make(q, k, v, is_causal=True, log_decay=-torch.rand(2, 2, 130, dtype=torch.float64) / 20)
    for cut in (Plan(chunk=32), Plan(chunk=64, dense_tile=16, feature_budget=1), Plan(chunk=128, feature_budget=999)):
        check(variant, call, None, cut._replace(form=variant.form, level=variant.level))


@each
@pytest.mark.parametrize("normalize", ["standardize", "rms"])
@pytest.mark.parametrize("size", [1e19, 1e30])
def test_huge_tokens(variant: Variant, size: float, normalize: str) -> None:
    """In fp32, where their squares overflow: the same weights as those of the normalized tokens."""
    q, k, v = (randn(1, 1, 40, 8, dtype=torch.float32) for _ in range(3))
    call = make(q * size, k * size, v, normalize=normalize, is_causal=True)
    small = make(normalized(q, normalize), normalized(k, normalize), v, normalize="none", is_causal=True)
    huge, plain = everything(variant, call), everything(variant, small)
    for name in ("o", "g", "d_v"):
        torch.testing.assert_close(huge[name], plain[name], rtol=1e-5, atol=1e-5)
    assert huge["d_q"].isfinite().all()
    assert huge["d_k"].isfinite().all()


def test_every_backend_takes_part() -> None:
    missing = [*([] if native.levels() else ["native"]), *(["triton"] if MISSING else [])]
    assert {param.values[0].name for param in variants()} == set(backends.NAMES) - set(missing)
