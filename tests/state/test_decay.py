"""A state whose tokens fade must be the causal attention with log_decay, however the tokens arrive."""

import copy
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from fastmax import fastmax_attention, reference_attention, similarity, standardize
from fastmax.core import default_scale, rms_normalize
from fastmax.decay import bounded
from fastmax.features import feature_count
from fastmax.state import FastmaxState, decode
from fastmax.state.recent import capacity
from tests.state.test_state import Fused, complete
from tests.support import assert_within_budget, randn

B, HQ, HKV, N, D, DV = 3, 4, 2, 41, 6, 5
assert 2 * capacity(D, DV, 2) < N, "tokens must go from the recent ones to the sum, more than once"
MASK = torch.tensor(
    [[True] * N, [False, False] + [True] * (N - 2), [True, False, True, True, False] + [True] * (N - 5)]
)


def tokens(dtype: torch.dtype = torch.float64, count: int = N) -> tuple[Tensor, Tensor, Tensor]:
    shapes = (B, HQ, count, D), (B, HKV, count, D), (B, HKV, count, DV)
    q, k, v = (randn(*shape, dtype=dtype) for shape in shapes)
    return q, k, v


def empty(**options: Any) -> FastmaxState:
    return FastmaxState.empty(B, HKV, D, DV, **{"dtype": torch.float64, **complete(options, D)})


def at(now: slice, mask: Tensor | None, *tensors: Tensor) -> tuple[Any, ...]:
    """The arguments of a step for these tokens."""
    *qkv, log_decay = tensors
    return *(x[:, :, now] for x in qkv), None if mask is None else mask[:, now], log_decay[:, :, now]


def decays(kind: str, count: int = N) -> Tensor:
    x = torch.rand(B, HKV, count, dtype=torch.float64)
    few = torch.rand(B, HKV, count) < 0.1
    kinds = {
        "mild": -0.3 * x,
        "steep": -50 * torch.ones_like(x),
        "tiny": -1e-7 * x,
        "none": torch.zeros_like(x),
        "resets": torch.where(few, -50.0, -1e-7 * x),
        "lowest": torch.where(few, torch.finfo(torch.float64).min, -0.3 * x),
        "steep, then mild": torch.where(torch.arange(count) // 32 % 2 == 0, -50.0, -0.3 * x),
    }
    return kinds[kind]


KINDS = ("mild", "steep", "tiny", "none", "resets")
OPTIONS: dict[str, Any] = {
    "default": {},
    "rms": {"normalize": "rms"},
    "raw": {"normalize": False, "scale": 0.2},
    "per head": {"scale": torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)},
    "order 1": {"order": 1},
    "order 3": {"order": 3},
}


@pytest.fixture(params=["composed", "fused"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Fused | None:
    """Never in place, and by a backend that has a step."""
    if request.param == "composed":
        monkeypatch.setattr(FastmaxState, "_may_step_in_place", lambda *_: False)
        return None
    fused = Fused()
    monkeypatch.setattr(decode, "load", lambda name: fused if name == "chunked" else object())
    return fused


@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize("kind", [*KINDS, "lowest"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("prefill", [0, 1, 20, N])
@torch.no_grad()
def test_decoding_is_the_causal_attention(
    options: dict[str, Any], kind: str, padded: bool, prefill: int, kernel: Fused | None
) -> None:
    q, k, v = tokens()
    log_decay, mask = decays(kind), MASK if padded else None
    if mask is not None:
        log_decay = torch.where(mask[:, None], log_decay, torch.nan)  # it does not matter what a hidden key holds
    whole = None if mask is None else mask[:, None, None, :]
    expected = reference_attention(q, k, v, whole, is_causal=True, enable_gqa=True, log_decay=log_decay, **options)
    state = empty(**options)
    parts = [state.step(*at(slice(prefill), mask, q, k, v, log_decay))]
    parts += [state.step(*at(slice(i, i + 1), mask, q, k, v, log_decay)) for i in range(prefill, N)]
    torch.testing.assert_close(torch.cat(parts, 2), expected)
    counted = log_decay if mask is None else torch.where(mask[:, None], log_decay, 0)
    torch.testing.assert_close(state.log_decay, bounded(counted).sum(2))
    if kernel is not None:
        assert kernel.step.call_count == N - prefill + (prefill == 1)


@given(
    cuts=st.lists(st.integers(0, N), max_size=6),
    kind=st.sampled_from([*KINDS, "lowest"]),
    padded=st.booleans(),
    graded=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60)
def test_pieces_equal_the_whole(cuts: list[int], kind: str, padded: bool, graded: bool, seed: int) -> None:
    """Take steps and updates of any number of tokens. They leave the state of the attention behind."""
    torch.manual_seed(seed)
    leaves = [*tokens(), decays(kind)]
    leaves = [x.requires_grad_(graded) for x in leaves]
    mask = MASK if padded else None
    q, k, v, log_decay = leaves
    state, parts, expected = empty(), [], []
    o, total = fastmax_attention(
        q,
        k,
        v,
        None if mask is None else mask[:, None, None, :],
        is_causal=True,
        enable_gqa=True,
        log_decay=log_decay,
        return_state=True,
    )
    edges = [0, *sorted(cuts), N]
    for i, (start, end) in enumerate(pairwise(edges)):
        if i % 3 == 2:
            state.update(*at(slice(start, end), mask, k, v, log_decay))
        else:
            parts.append(state.step(*at(slice(start, end), mask, *leaves)))
            expected.append(o[:, :, start:end])
    parts, expected = [torch.cat(parts, 2), state.tensor, state.log_decay], [torch.cat(expected, 2), total]
    counted = log_decay if mask is None else torch.where(mask[:, None], log_decay, 0)
    expected.append(bounded(counted).sum(2))
    for got, wanted in zip(parts, expected, strict=True):
        torch.testing.assert_close(got, wanted)
    if graded:
        weights = [torch.randn_like(x) for x in parts]
        for got, wanted in zip(
            torch.autograd.grad(parts, leaves, weights), torch.autograd.grad(expected, leaves, weights), strict=True
        ):
            torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_gradients_of_steps_and_reads(order: int, padded: bool) -> None:
    """Enough tokens for the sum; the query that reads comes after them."""
    count = capacity(3, 2, order) + 3
    shapes = (1, 2, count, 3), (1, 1, count, 3), (1, 1, count, 2), (1, 1, count), (1, 2, 2, 3)
    q, k, v, log_decay, later = (randn(*shape, grad=True) for shape in shapes)
    log_decay = (-0.1 - 0.2 * log_decay.detach().abs()).requires_grad_()
    mask = torch.ones(1, count, dtype=torch.bool)
    mask[:, 1] = not padded

    def run(*given: Tensor) -> tuple[Tensor, ...]:
        *given, reading = given  # type: ignore[assignment]
        state = FastmaxState.empty(1, 1, 3, 2, order, dtype=torch.float64, scale=0.3, normalize=True)
        state.update(*at(slice(2), mask, *given[1:]))
        outputs = [state.step(*at(slice(2, count - 1), mask, *given))]
        outputs.append(state.step(*at(slice(count - 1, count), mask, *given)))
        return *outputs, state.read(reading), state.log_decay, state.tensor

    assert gradcheck(run, (q, k, v, log_decay, later), fast_mode=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [0, 1, 7, N])
@pytest.mark.parametrize("order", [2, 3])
def test_reads_are_at_the_last_token(kind: str, count: int, order: int) -> None:
    q, k, v = tokens(count=count)
    log_decay, query = decays(kind, count), randn(B, HQ, 9, D)
    state = empty(order=order)
    state.update(k, v, MASK[:, :count], log_decay)
    c = torch.where(MASK[:, None, :count], log_decay, 0).cumsum(2)
    # the weights by hand: hiding a key is a weight of zero
    kept = (c[:, :, -1:] - c).exp() * MASK[:, None, :count]
    expected = torch.zeros(B, HQ, 9, DV, dtype=torch.float64)
    if count:
        f = reference_weights(query, k, order) * kept.repeat_interleave(2, 1).unsqueeze(2)
        expected = f @ v.repeat_interleave(2, 1) / f.sum(-1, keepdim=True)
    expected = torch.where(state.tokens.reshape(B, 1, 1, 1) == 0, 0, expected)
    torch.testing.assert_close(state.read(query), expected)
    torch.testing.assert_close(state.read(query.repeat(1, 1, 300, 1))[:, :, :9], expected)
    assert q.shape[2] == count


def reference_weights(query: Tensor, k: Tensor, order: int) -> Tensor:
    q, k = standardize(query), standardize(k).repeat_interleave(2, 1)
    return similarity(default_scale(order, D) * q @ k.mT, order)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", [0, 1, 5, 20, N - 3, N])
def test_an_older_state_fades_by_the_younger_ones_total(kind: str, split: int) -> None:
    _, k, v = tokens()
    log_decay, query = decays(kind), randn(B, HQ, 4, D)
    whole, older, younger = empty(), empty(), empty()
    whole.update(k, v, MASK, log_decay)
    older.update(*at(slice(split), MASK, k, v, log_decay))
    younger.update(*at(slice(split, N), MASK, k, v, log_decay))
    both = older + younger
    torch.testing.assert_close(both.read(query), whole.read(query))
    torch.testing.assert_close(both.tensor, whole.tensor)
    torch.testing.assert_close(both.log_decay, whole.log_decay)
    assert both.tokens.tolist() == whole.tokens.tolist()
    more = tokens(count=20)
    steep = decays("mild", 20)
    torch.testing.assert_close(both.step(*more, None, steep), whole.step(*more, None, steep))


@pytest.mark.parametrize("order", [1, 2])
def test_the_step_of_the_contract(order: int) -> None:
    """Check what is written beside the recent tokens, and where: zeros for a key that does not count."""
    q, k, v = tokens(count=1)
    mask = torch.tensor([[True], [False], [True]])
    log_decay = torch.where(mask.unsqueeze(1), decays("mild", 1), torch.nan)
    total = randn(B, HKV, feature_count(D, order), DV + 1).abs()
    room = [randn(B, HKV, 4, n) for n in (D, DV + 1)] + [decays("mild", 4)]
    before = [x.clone() for x in room]
    step = decode.prepare_step(q, k, v, total, *room, None, log_decay, order=order, scale=0.1, normalize="rms")
    o = step(q, k, v, None, mask, log_decay, 2, 0)
    assert bool(o.isfinite().all())
    written = rms_normalize(k), torch.nn.functional.pad(v, (0, 1), value=1.0), log_decay.unsqueeze(-1)
    for buffer, old, new in zip(room, before, written, strict=True):
        at_count = buffer[:, :, 2].reshape(B, HKV, -1)
        torch.testing.assert_close(at_count, torch.where(mask[:, None], new.reshape(B, HKV, -1), 0))
        for place in (0, 1, 3):
            assert torch.equal(buffer[:, :, place], old[:, :, place])


def test_a_state_goes_on_from_the_attention() -> None:
    q, k, v = tokens()
    log_decay = decays("mild")
    options: dict[str, Any] = {"is_causal": True, "enable_gqa": True}
    start, rest = slice(20), slice(20, N)
    _, tensor = fastmax_attention(
        *at(start, None, q, k, v, log_decay)[:3], log_decay=log_decay[:, :, start], return_state=True, **options
    )
    total = log_decay[:, :, start].sum(2)
    state = FastmaxState(tensor, torch.full((B,), 20), head_dim=D, log_decay=total, **complete({}, D))
    torch.testing.assert_close(state.log_decay, total)
    o = state.step(*at(rest, None, q, k, v, log_decay))
    torch.testing.assert_close(o, reference_attention(q, k, v, log_decay=log_decay, **options)[:, :, rest])
    more = *(x[:, :, :3] for x in (q, k, v)), None, log_decay[:, :, :3]
    back = fastmax_attention(*more[:3], initial_state=state.tensor, log_decay=more[4], **options)
    torch.testing.assert_close(back, state.step(*more))


COPIES: dict[str, Any] = {
    "clone": lambda s, _: s.clone(),
    "detach": lambda s, _: s.detach(),
    "to": lambda s, _: s.to("cpu", torch.float64),
    "select": lambda s, _: s.select(torch.arange(B)),
    "reorder": lambda s, _: s.reorder(torch.arange(B)),
    "repeat": lambda s, _: s.repeat_interleave(2).select(torch.arange(0, 2 * B, 2)),
    "copy": lambda s, _: copy.copy(s),
    "deepcopy": lambda s, _: copy.deepcopy(s),
    "pickle": lambda s, _: pickle.loads(pickle.dumps(s)),
    "state_dict": lambda s, _: FastmaxState.from_state_dict(s.state_dict()),
    "file": lambda s, path: (s.save(path), FastmaxState.load(path))[1],
    "add": lambda s, _: s + empty(normalize="rms"),
    "add to": lambda s, _: empty(normalize="rms") + s,
}


@pytest.mark.parametrize("count", [0, 3, N])
@pytest.mark.parametrize("how", COPIES.values(), ids=COPIES)
@torch.no_grad()
def test_copies_carry_the_decays(how: Any, count: int, tmp_path: Path) -> None:
    q, k, v = tokens(count=N + 1)
    log_decay = decays("mild", N + 1)
    state = empty(normalize="rms")
    state.update(*at(slice(count), None, k, v, log_decay))
    twin = how(state, tmp_path / "state")
    assert repr(twin) == repr(state)
    torch.testing.assert_close(twin.log_decay, state.log_decay)
    last = at(slice(N, N + 1), None, q, k, v, log_decay)
    before = state.tensor
    o = twin.step(*last)
    assert torch.equal(state.tensor, before)
    torch.testing.assert_close(o, state.step(*last))
    torch.testing.assert_close(twin.tensor, state.tensor)


def test_a_total_is_as_exact_in_another_dtype() -> None:
    state = empty()
    _, k, v = tokens()
    log_decay = decays("tiny")
    state.update(k, v, None, log_decay)
    kept, before = state.to(dtype=torch.float32)._now().total_decay, state._now().total_decay
    assert kept is not before
    assert torch.equal(kept, before)


@pytest.mark.parametrize("kind", ["mild", "steep", "tiny", "resets", "lowest", "steep, then mild"])
@pytest.mark.parametrize("head_dim", [16, 64])
def test_single_precision_is_that_of_the_dense_form(kind: str, head_dim: int) -> None:
    count = 300
    q, k, v = (torch.randn(B, HKV, count, head_dim) for _ in range(3))
    log_decay = decays(kind, count).clamp(min=torch.finfo(torch.float32).min).float()
    exact = reference_attention(*(x.double() for x in (q, k, v)), is_causal=True, log_decay=log_decay.double())
    dense = reference_attention(q, k, v, is_causal=True, log_decay=log_decay)
    for size in (1, 7, 50):
        state = FastmaxState.empty(B, HKV, head_dim, **complete({}, head_dim))
        with torch.no_grad():
            parts = [state.step(*at(slice(i, i + size), None, q, k, v, log_decay)) for i in range(0, count, size)]
        assert_within_budget(torch.cat(parts, 2), exact, dense)
        torch.testing.assert_close(state.log_decay, bounded(log_decay).double().sum(2))


@pytest.mark.slow
def test_a_step_compiles_in_one_graph() -> None:
    torch.compiler.reset()
    q, k, v = tokens()
    log_decay, state = decays("mild"), empty()
    step = torch.compile(lambda *token: state.step(*token), fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        o = torch.cat([step(*at(slice(i, i + 1), None, q, k, v, log_decay)) for i in range(N)], 2)
    expected = reference_attention(q, k, v, is_causal=True, enable_gqa=True, log_decay=log_decay)
    torch.testing.assert_close(o, expected)


@torch.no_grad()
def test_autocast_lowers_outputs_and_no_sums() -> None:
    q, k, v = tokens(torch.float32)
    log_decay = decays("mild").float()
    plain, lowered = empty(dtype=torch.float32), empty(dtype=torch.float32)
    plain.update(k, v, None, log_decay)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for i in range(N):
            o = lowered.step(*at(slice(i, i + 1), None, q, k, v, log_decay))
    assert o.dtype == torch.bfloat16
    torch.testing.assert_close(lowered.tensor, plain.tensor)


def test_graphs_survive_later_steps() -> None:
    q, k, v = tokens()
    log_decay, results = decays("mild"), []
    for disturbed in (False, True):
        state = empty()
        with torch.no_grad():
            for i in range(20):
                state.step(*at(slice(i, i + 1), None, q, k, v, log_decay))
        leaf = q.clone().requires_grad_()
        o = state.read(leaf)
        if disturbed:
            with torch.no_grad():
                for i in range(20, 25):
                    state.step(*at(slice(i, i + 1), None, q, k, v, log_decay))
        results.append(torch.autograd.grad(o.square().sum(), leaf)[0])
    assert torch.equal(*results)


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("count", [1, 2, 30])
@pytest.mark.parametrize("wrong", [0.1, torch.nan, -torch.inf])
def test_a_refused_decay_leaves_the_state_as_it_was(wrong: float, count: int, graded: bool) -> None:
    q, k, v = tokens()
    state, log_decay = empty(), decays("mild")
    state.update(*at(slice(20), None, k, v, log_decay))
    before = state.tensor
    log_decay = log_decay[:, :, :count].clone()
    log_decay[2, 1, count - 1] = wrong
    given = [x[:, :, :count].requires_grad_(graded) for x in (q, k, v)]
    where = rf"\(batch, head, token\) = \(2, 1, {count - 1}\)"
    for call in (
        lambda: state.step(*given, log_decay=log_decay),
        lambda: state.update(*given[1:], log_decay=log_decay),
    ):
        with pytest.raises(ValueError, match=f"log_decay must be finite and at most 0, got .* at {where}"):
            call()
    assert torch.equal(state.tensor, before)
    mask = torch.ones(B, count, dtype=torch.bool)
    mask[2, count - 1] = False
    state.step(*given, mask, log_decay)


@pytest.mark.parametrize(
    ("log_decay", "message"),
    [
        (
            torch.zeros(B, HQ, 2),
            r"broadcast to \(B, key heads, N\) = \(3, 2, 2\), got torch.float32 of shape \(3, 4, 2\)",
        ),
        (torch.zeros(1, B, HKV, 2), r"got torch.float32 of shape \(1, 3, 2, 2\)"),
        (torch.zeros(B, HKV, 2, dtype=torch.int64), "got torch.int64"),
        (torch.zeros(B, HKV, 2, device="meta"), "log_decay must be on cpu as the state is, got meta"),
    ],
)
def test_refusals(log_decay: Tensor, message: str) -> None:
    q, k, v = tokens(count=2)
    with pytest.raises(ValueError, match=message):
        empty().step(q, k, v, None, log_decay)


@pytest.mark.parametrize("shape", [(), (1,), (2,), (HKV, 1), (HKV, 2), (B, 1, 2), (B, HKV, 1)])
def test_decays_broadcast(shape: tuple[int, ...]) -> None:
    q, k, v = tokens(count=2)
    log_decay = -torch.rand(shape, dtype=torch.float64)
    expected = reference_attention(q, k, v, is_causal=True, enable_gqa=True, log_decay=log_decay.expand(B, HKV, 2))
    torch.testing.assert_close(empty().step(q, k, v, log_decay=log_decay), expected)


def test_refused_totals_and_normalizations() -> None:
    state = empty()
    for total, message in (
        (torch.zeros(B, HQ), r"of shape \(3, 2\), on cpu; got torch.float32 of shape \(3, 4\)"),
        (torch.ones(B, HKV), "log_decay must be finite and at most 0"),
    ):
        with pytest.raises(ValueError, match=message):
            FastmaxState(state.tensor, state.tokens, head_dim=D, log_decay=total, **complete({}, D))
    with pytest.raises(ValueError, match="normalize must be True, False or \"rms\", got 'layer'"):
        empty(normalize="layer")
    with pytest.raises(ValueError, match="expected normalize=True, got normalize=rms"):
        empty() + empty(normalize="rms")


def test_sizes() -> None:
    """One number per recent token and head more, and the total."""
    q, k, v = tokens()
    plain, fading = empty(), empty()
    plain.update(k, v)
    with torch.no_grad():
        for i in range(N):
            fading.step(*at(slice(i, i + 1), None, q, k, v, decays("mild")))
    assert fading.nbytes == plain.nbytes + B * HKV * (capacity(D, DV, 2) + 1) * 8
    assert fading._buffer is not None
    held, room = fading._now(), fading._buffer._room
    parts = (held.total, held.total_decay, room.keys, room.values, room.decays)
    assert fading.nbytes == sum(x.nbytes for x in parts if x is not None)


def test_without_decay_nothing_is_kept_for_it() -> None:
    q, k, v = tokens()
    state = empty()
    state.update(k, v)
    with torch.no_grad():
        state.step(q[:, :, :1], k[:, :, :1], v[:, :, :1])
    assert state._now().recent.decays is None
    assert state._now().total_decay is None
    assert torch.equal(state.log_decay, torch.zeros(B, HKV, dtype=torch.float64))
