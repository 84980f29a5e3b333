"""The Triton backend in Triton's interpreter: a choice of calls that between them launch every kernel in every way.

`make test-triton` runs the whole conformance suite there; `make test-gpu` runs it on a GPU.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from fastmax.backends import chunked
from fastmax.call import OutputGrads
from fastmax.plan import Plan
from fastmax.state import decode
from tests.backends.conformance import RefusedError, Variant, check, make, output_grads, run
from tests.backends.interpreter import MISSING, interpreted, pretend
from tests.support import assert_within_budget, randn

pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

HERE = Variant("triton", "interpreted", "cpu", "factorized")
SMALL = Plan("factorized", chunk=32, dense_tile=32)
"""Two chunks of two tiles and more, for some 70 tokens."""


def fp32(*shape: int) -> Tensor:
    return randn(*shape, dtype=torch.float32)


def padding(batch: int, tokens: int) -> Tensor:
    """The first queries have no key at all, and a chunk in the middle is empty."""
    mask = torch.rand(batch, 1, tokens) < 0.7
    mask[..., :3] = mask[..., 32:64] = False
    return mask


def earlier(states: int, heads: int, dim: int, value_dim: int, order: int = 2) -> Tensor:
    """A state of 40 keys that came before."""
    before = make(fp32(states, heads, 0, dim), fp32(states, heads, 40, dim), fp32(states, heads, 40, value_dim))
    before.options = before.options._replace(order=order, return_state=True)
    return chunked.forward(before, Plan())[2]


@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "unmasked"])
@pytest.mark.parametrize("order", [1, 2])
def test_factorized(order: int, is_causal: bool) -> None:
    q, k, v = fp32(1, 2, 70, 16), fp32(1, 1, 70, 16), fp32(1, 1, 70, 20)
    check(HERE, make(q, k, v, order=order, is_causal=is_causal), None, SMALL)


@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "unmasked"])
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_dense(order: int, is_causal: bool) -> None:
    q, k, v = fp32(1, 2, 40, 16), fp32(1, 1, 50, 16), fp32(1, 1, 50, 16)
    mask = torch.rand(1, 1, 50) < 0.7
    v = torch.where(mask.unsqueeze(-1), v, torch.nan)
    plan = Plan("dense", dense_tile=32)
    check(HERE, make(q, k, v, order=order, is_causal=is_causal, key_mask=mask, head_scale=torch.rand(2)), None, plan)


@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "unmasked"])
def test_padding_heads_and_a_state(is_causal: bool) -> None:
    """NaN under the mask, odd dimensions, two query heads per key head, scales, a state in and out."""
    q, k, v = fp32(2, 2, 70, 9), fp32(2, 1, 70, 9), fp32(2, 1, 70, 5)
    mask = padding(2, 70)
    k, v = (torch.where(mask.unsqueeze(-1), x, torch.nan) for x in (k, v))
    more: dict[str, Any] = {"head_scale": torch.rand(2), "state_in": earlier(2, 1, 9, 5), "return_state": True}
    check(HERE, make(q, k, v, is_causal=is_causal, key_mask=mask, **more), None, SMALL)


@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "unmasked"])
@pytest.mark.parametrize("form", ["dense", "factorized"])
def test_packed(form: str, is_causal: bool) -> None:
    """Empty sequences, a single key, other lengths of queries."""
    q, k, v = fp32(1, 2, 70, 16), fp32(1, 1, 75, 16), fp32(1, 1, 75, 16)
    ends = {"cu_seqlens_q": torch.tensor([0, 0, 50, 60, 70]), "cu_seqlens_k": torch.tensor([0, 4, 70, 70, 75])}
    more: dict[str, Any] = {"return_state": True} if form == "factorized" else {}
    check(HERE, make(q, k, v, is_causal=is_causal, **ends, **more), None, SMALL._replace(form=form))


@pytest.mark.parametrize("strength", [0.02, 60.0])
def test_forgetting(strength: float) -> None:
    q, k, v = (fp32(1, 1, 70, 16) for _ in range(3))
    decay = -torch.rand(1, 1, 70).pow(4) * strength
    check(
        HERE,
        make(q, k, v, is_causal=True, log_decay=decay, state_in=earlier(1, 1, 16, 16), return_state=True),
        None,
        SMALL,
    )


def test_a_reset_leaves_the_decays_after_it() -> None:
    q, k, v, decay = fp32(1, 1, 70, 16), fp32(1, 1, 70, 16), fp32(1, 1, 70, 16), -torch.rand(1, 1, 70)
    decay[..., [5, 32, 40]] = torch.finfo(torch.float32).min
    call = make(q, k, v, is_causal=True, log_decay=decay, state_in=earlier(1, 1, 16, 16), return_state=True)
    check(HERE, call, None, SMALL)


def test_forgetting_in_packed_sequences() -> None:
    q, k, v = (fp32(1, 1, 70, 16) for _ in range(3))
    mask, ends = padding(1, 70), torch.tensor([0, 0, 40, 70], dtype=torch.int32)
    decay = torch.where(mask, -torch.rand(1, 1, 70), 0)
    call = make(q, k, v, is_causal=True, key_mask=mask, log_decay=decay, cu_seqlens_q=ends, cu_seqlens_k=ends)
    check(HERE, call, None, SMALL)


@pytest.mark.parametrize("normalize", ["rms", "none"])
def test_normalizations(normalize: str) -> None:
    q, k, v = (fp32(1, 1, 40, 16) / 4 for _ in range(3))
    check(HERE, make(q, k, v, normalize=normalize, head_scale=torch.rand(1)), None, SMALL)


@pytest.mark.parametrize("normalize", ["standardize", "rms"])
def test_huge_and_constant_tokens(normalize: str) -> None:
    q, k, v = (fp32(1, 1, 20, 8) for _ in range(3))
    q, k = q * 1e30, k * 1e19
    k[:, :, 3] = 2.5
    found = run(HERE, *HERE.adapted(call := make(q, k, v, normalize=normalize), output_grads(call)), SMALL)
    small = make(q / 1e30, torch.where(k == 2.5, k, k / 1e19), v, normalize=normalize)
    plain = run(HERE, small, OutputGrads(torch.ones_like(v), None, None), SMALL)
    for name in ("o", "g"):
        torch.testing.assert_close(found[name], plain[name], rtol=1e-5, atol=1e-5)
    assert found["d_q"].isfinite().all()
    assert found["d_k"].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "unmasked"])
def test_half_precision(dtype: torch.dtype, is_causal: bool) -> None:
    q, k, v = (randn(1, 1, 70, 16, dtype=dtype) for _ in range(3))
    more: dict[str, Any] = {"log_decay": -torch.rand(1, 1, 70) / 10} if is_causal else {}
    call = make(q, k, v, is_causal=is_causal, return_state=True, **more)
    check(HERE, call, None, SMALL)


@pytest.mark.parametrize("dim", [20, pytest.param(64, marks=pytest.mark.interpreted)])
def test_features_that_are_made_in_fp32(dim: int) -> None:
    """As for AMD's GPUs, which multiply no bf16: rounded once, to nearest even."""
    q, k, v = (randn(1, 1, 70, dim, dtype=torch.bfloat16) for _ in range(3))
    interpreted()(pretend, "gfx942")
    try:
        check(HERE, make(q, k, v, is_causal=True, scale=1.0), None, SMALL)
    finally:
        interpreted()(pretend, None)


@pytest.mark.parametrize("dim", [20, 64, pytest.param(128, marks=pytest.mark.interpreted)])
def test_wide_heads(dim: int) -> None:
    """Several pairs of blocks."""
    q, k, v = fp32(1, 1, 70, dim), fp32(1, 1, 70, dim), fp32(1, 1, 70, 16)
    check(HERE, make(q, k, v, is_causal=True), None, Plan("factorized", chunk=64, dense_tile=64))


def test_spans() -> None:
    """A budget of one chunk of two sequences: the state is handed on between spans, and its gradient back."""
    q, k, v = (fp32(2, 1, 70, n) for n in (8, 8, 4))
    more: dict[str, Any] = {
        "state_in": earlier(2, 1, 8, 4),
        "return_state": True,
        "log_decay": -torch.rand(2, 1, 70) / 9,
    }
    check(HERE, make(q, k, v, is_causal=True, **more), None, SMALL._replace(feature_budget=1))


def test_spans_and_heads_apart_have_the_bits_of_the_whole() -> None:
    """Sums are taken about one centre, and handed on as they are."""
    q, k, v = (randn(2, 2, 100, n, dtype=torch.bfloat16) for n in (16, 16, 20))
    call = make(q, k, v, is_causal=True, log_decay=-torch.rand(2, 2, 100) / 9, return_state=True)
    grads = output_grads(call)
    whole, cut = (run(HERE, call, grads, SMALL._replace(feature_budget=budget)) for budget in (None, 1))
    del whole["d_log_decay"]  # of which PyTorch adds up parts in an order of its own; `test_spans` has it
    assert [name for name in whole if not torch.equal(whole[name], cut[name])] == []


def test_packed_heads_one_at_a_time() -> None:
    q, k, v = fp32(1, 4, 50, 8), fp32(1, 2, 50, 8), fp32(1, 2, 50, 4)
    ends = torch.tensor([0, 40, 50])
    call = make(q, k, v, is_causal=True, cu_seqlens_q=ends, cu_seqlens_k=ends, head_scale=torch.rand(4))
    check(HERE, call, None, SMALL._replace(feature_budget=1))


def test_same_bits_twice_and_no_leak() -> None:
    """Bit for bit, whatever comes after; in bf16, where the sums are about the mean of the first chunk alone."""
    q, k, v = (randn(1, 1, 70, 16, dtype=torch.bfloat16) for _ in range(3))
    first = run(HERE, call := make(q, k, v, is_causal=True), grads := output_grads(call), SMALL)
    again = run(HERE, call, grads, SMALL)
    assert all(torch.equal(first[name], again[name]) for name in first)
    changed = [x.clone() for x in (q, k, v)]
    for x in changed:
        x[..., 50:, :] = 1e4 * randn(1, 1, 20, 16)
    after = run(HERE, make(*changed, is_causal=True), grads, SMALL)
    assert torch.equal(after["o"][..., :50, :], first["o"][..., :50, :])


@pytest.mark.parametrize(
    ("batch", "heads", "queries", "keys"), [(0, 2, 3, 3), (1, 2, 0, 3), (1, 2, 3, 0), (1, 1, 1, 1)]
)
def test_little_or_nothing(batch: int, heads: int, queries: int, keys: int) -> None:
    q, k, v = fp32(batch, heads, queries, 4), fp32(batch, heads, keys, 4), fp32(batch, heads, keys, 3)
    check(HERE, make(q, k, v, is_causal=True, return_state=True, head_scale=torch.ones(heads)), None, SMALL)
    check(HERE, make(q, k, v), None, SMALL)


def test_forgetting_where_there_is_nothing() -> None:
    """No heads, and a packed batch of no sequences."""
    none = torch.zeros(1, dtype=torch.int32)
    packed: dict[str, Any] = {"cu_seqlens_q": none, "cu_seqlens_k": none}
    for batch, heads, tokens, more in ((2, 0, 3, {}), (1, 2, 0, packed)):
        q, k, v = (fp32(batch, heads, tokens, n) for n in (4, 4, 3))
        decay = torch.full((batch, heads, tokens), -0.5)
        check(HERE, make(q, k, v, is_causal=True, return_state=True, log_decay=decay, **more), None, SMALL)


def test_what_it_cannot_run() -> None:
    x = fp32(1, 1, 4, 8)
    wide = fp32(1, 1, 4, 129)
    for call, reason in (
        (make(x.double(), x.double(), x.double()), "float64"),
        (make(wide, wide, x), "128 channels"),
        (make(x, x, x, order=3, return_state=True), "order 3 has no state"),
        (make(*[fp32(1, 1, 5000, 2)] * 3, order=3), "only the dense form"),
        (make(x, x, x, dropout_seed=torch.tensor(1), dropout_p=0.5), "dropout"),
    ):
        with pytest.raises(RefusedError if reason != "float64" else AssertionError, match=reason):
            run(HERE, call, output_grads(call), SMALL)


@pytest.mark.parametrize(("order", "dim", "value_dim", "fold"), [(2, 9, 20, 2), (1, 16, 5, 0)])
def test_steps_of_decoding(order: int, dim: int, value_dim: int, fold: int) -> None:
    """Two tokens after four recent ones: a group of query heads, forgetting, a key that does not count, a sum in place."""
    q, k, v = fp32(2, 2, 2, dim), fp32(2, 1, 2, dim), fp32(2, 1, 2, value_dim)
    k[1, :, 0] = torch.nan
    mask, decay, scales = torch.tensor([[True], [False]]), -torch.rand(2, 1, 2), torch.rand(2)
    held = [
        earlier(2, 1, dim, value_dim, order),
        fp32(2, 1, 6, dim) / dim,
        fp32(2, 1, 6, value_dim + 1),
        -torch.rand(2, 1, 6),
    ]
    results = []
    for prepare, kind in (
        (decode.prepare_step, torch.float64),
        (decode.prepare_step, torch.float32),
        (interpreted().prepare_step, torch.float32),
    ):
        buffers = [x.to(kind, copy=True) for x in held]
        tokens = [x.to(kind) for x in (q, k, v)]
        first = decay.to(kind)[:, :, :1]
        step = prepare(
            *(x[:, :, :1] for x in tokens), *buffers, None, first, order=order, scale=1 / dim, normalize="rms"
        )
        outputs = []
        for t, count in ((0, 4), (1, 5 - fold)):
            now = [x[:, :, t : t + 1] for x in (*tokens, decay.to(kind))]
            outputs.append(
                step(*now[:3], scales.to(kind), mask if t == 0 else None, now[3], count, fold if t == 0 else 0)
            )
        results.append([*outputs, *(x if i == 0 else x[:, :, : 6 - fold] for i, x in enumerate(buffers))])
    for exact, same, actual in zip(*results, strict=True):
        assert_within_budget(actual, exact, same)
