"""The options of a function and of a state are one: given once, and refused where they differ."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fastmax import FastmaxState, fastmax_attention, reference_attention
from tests.support import randn

B, HQ, HKV, N, D = 2, 4, 2, 40, 6
CHOSEN: dict[str, Any] = {"order": 1, "scale": 0.3, "normalize": "rms"}
OTHER: dict[str, Any] = {"order": 2, "scale": 0.4, "normalize": True}
OPTIONS = pytest.mark.parametrize("name", CHOSEN)


def tokens(count: int = N) -> tuple[Tensor, Tensor, Tensor]:
    return randn(B, HQ, count, D), randn(B, HKV, count, D), randn(B, HKV, count, D)


def decays(count: int = N) -> Tensor:
    return -torch.rand(B, HKV, count, dtype=torch.float64)


def empty(**options: Any) -> FastmaxState:
    return FastmaxState.empty(B, HKV, D, dtype=torch.float64, **options)


def attend(state: FastmaxState, x: tuple[Tensor, Tensor, Tensor], now: slice = slice(None), **options: Any) -> Tensor:
    q, k, v = (part[:, :, now] for part in x)
    return fastmax_attention(q, k, v, is_causal=True, enable_gqa=True, state=state, **options)


@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])
@pytest.mark.parametrize("decaying", [False, True], ids=["", "decaying"])
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize(
    "options", [{}, CHOSEN, {"scale": torch.tensor([0.1, 0.2, 0.3, 0.4])}], ids=["", "chosen", "tensor"]
)
def test_one_call_is_for_the_whole_and_for_its_pieces(
    options: dict[str, Any], padded: bool, decaying: bool, grad: bool
) -> None:
    x, log_decay = tokens(), decays() if decaying else None
    mask = torch.rand(B, 1, 1, N) < 0.7 if padded else None
    expected = reference_attention(*x, mask, is_causal=True, enable_gqa=True, log_decay=log_decay, **options)
    x[0].requires_grad_(grad)
    state = empty()
    parts = [
        attend(
            state,
            x,
            now,
            attn_mask=None if mask is None else mask[..., now],
            log_decay=None if log_decay is None else log_decay[:, :, now],
            **options,
        )
        for now in (slice(0, 9), *(slice(i, i + 1) for i in range(9, 37)), slice(37, N))
    ]
    torch.testing.assert_close(torch.cat(parts, 2), expected)
    assert state.tokens.tolist() == ([N] * B if mask is None else mask.sum((1, 2, 3)).tolist())


def test_a_state_takes_its_options_from_the_first_call() -> None:
    state = empty()
    assert "order=None, scale=None, normalize=None, decays=None" in repr(state)
    attend(state, tokens(), log_decay=decays(), **CHOSEN)
    assert "order=1, scale=0.3, normalize=rms, decays=True" in repr(state)
    default = empty()
    attend(default, tokens())
    assert "order=2, scale=1.0, normalize=True, decays=False" in repr(default)


@OPTIONS
@pytest.mark.parametrize("count", [1, N])
def test_a_call_that_differs_from_the_one_before_is_refused(name: str, count: int) -> None:
    state, x = empty(), tokens()
    attend(state, x, **CHOSEN)
    before = state.tensor
    with pytest.raises(ValueError, match=f"{name}={CHOSEN[name]}, .*{name}={OTHER[name]}"):
        attend(state, x, slice(count), **{**CHOSEN, name: OTHER[name]})
    left_out = {key: value for key, value in CHOSEN.items() if key != name}
    with pytest.raises(ValueError, match=f"{name}={CHOSEN[name]}"):
        attend(state, x, slice(count), **left_out)
    assert torch.equal(state.tensor, before)
    assert state.tokens.tolist() == [N] * B


@OPTIONS
def test_a_call_that_differs_from_what_the_state_was_created_with_is_refused(name: str) -> None:
    state = empty(**{name: CHOSEN[name]})
    with pytest.raises(ValueError, match=f"{name}={CHOSEN[name]}, .*{name}={OTHER[name]}"):
        attend(state, tokens(), **{**CHOSEN, name: OTHER[name]})
    attend(state, tokens(), **CHOSEN)


@OPTIONS
@pytest.mark.parametrize("method", ["step", "update", "read"])
def test_a_state_has_no_silent_defaults(method: str, name: str) -> None:
    """Decoding with an option of training left out would give other numbers."""
    q, k, v = tokens()
    given = {"step": (q, k, v), "update": (k, v), "read": (q,)}[method]
    state = empty(**{key: value for key, value in CHOSEN.items() if key != name})
    with pytest.raises(ValueError, match=f"this state has no {name} yet"):
        getattr(state, method)(*given)
    getattr(empty(**CHOSEN), method)(*given)


@pytest.mark.parametrize("count", [1, N])
@pytest.mark.parametrize("first", [False, True], ids=["decays come later", "decays are left out"])
@pytest.mark.parametrize("method", ["attention", "step", "update"])
@torch.no_grad()
def test_all_tokens_of_a_state_decay_or_none(method: str, first: bool, count: int) -> None:
    state, x = empty(**CHOSEN), tokens()

    def run(decaying: bool) -> None:
        log_decay = decays()[:, :, :count] if decaying else None
        q, k, v = (part[:, :, :count] for part in x)
        if method == "attention":
            attend(state, (q, k, v), log_decay=log_decay, **CHOSEN)
        elif method == "step":
            state.step(q, k, v, log_decay=log_decay)
        else:
            state.update(k, v, log_decay=log_decay)

    for _ in range(3):
        run(first)
    message = "have a log_decay, these tokens have none" if first else "have no log_decay, these tokens have one"
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            run(not first)
    run(first)
    assert state.tokens.tolist() == [4 * count] * B


@pytest.mark.parametrize("change", [{name: OTHER[name]} for name in OTHER], ids=OTHER)
def test_a_sum_of_the_attention_is_continued_with_its_options(change: dict[str, Any]) -> None:
    x = tokens()
    _, total = fastmax_attention(*x, is_causal=True, enable_gqa=True, return_state=True, **CHOSEN)
    count = torch.full((B,), N)
    state = FastmaxState(total, count, head_dim=D, order=1, normalize="rms")
    with pytest.raises(ValueError, match="have no log_decay, these tokens have one"):
        attend(state, x, log_decay=decays(), **CHOSEN)
    if "scale" not in change:
        with pytest.raises(ValueError, match="states must agree with the calls"):
            attend(state, x, **{**CHOSEN, **change})
    o = attend(state, x, **CHOSEN)
    whole = reference_attention(*(torch.cat((part, part), 2) for part in x), is_causal=True, enable_gqa=True, **CHOSEN)
    torch.testing.assert_close(o, whole[:, :, N:])
    with pytest.raises(TypeError, match="normalize"):
        FastmaxState(total, count, head_dim=D, order=1)


def test_states_that_decay_and_states_that_do_not_are_not_added() -> None:
    states = empty(**CHOSEN), empty(**CHOSEN)
    _, k, v = tokens()
    states[0].update(k, v)
    states[1].update(k, v, log_decay=decays())
    for a, b in (states, states[::-1]):
        with pytest.raises(ValueError, match="to be added: expected decays="):
            a + b
        assert (a + empty()).tokens.tolist() == (empty() + a).tokens.tolist() == [N] * B
        assert (empty() + a).order == 1


def test_a_learned_scale_is_that_of_the_last_call() -> None:
    x, state = tokens(), empty()
    first, last = torch.full((HQ,), 0.1), torch.full((HQ,), 0.2)
    attend(state, x, scale=first)
    o = attend(state, x, scale=last)
    twice = [torch.cat((part, part), 2) for part in x]
    torch.testing.assert_close(o, reference_attention(*twice, is_causal=True, enable_gqa=True, scale=last)[:, :, N:])
    for other in (0.1, torch.tensor(0.1)):
        with pytest.raises(ValueError, match="scale"):
            attend(state, x, scale=other)


def test_dropout_is_of_the_call_and_not_of_the_state() -> None:
    x, state = tokens(), empty()
    o = attend(state, x, dropout_p=0.5, dropout_mode="standard", **CHOSEN)
    assert not torch.allclose(o, reference_attention(*x, is_causal=True, enable_gqa=True, **CHOSEN))
    whole = empty(**CHOSEN)
    whole.update(*x[1:])
    assert torch.equal(state.tensor, whole.tensor)


def test_a_call_with_a_state_compiles_in_one_graph() -> None:
    torch.compiler.reset()
    x, state = tokens(), empty()
    step = torch.compile(lambda *x: attend(state, x, **CHOSEN), fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        o = torch.cat([step(*(part[:, :, i : i + 1] for part in x)) for i in range(N)], 2)
    torch.testing.assert_close(o, reference_attention(*x, is_causal=True, enable_gqa=True, **CHOSEN))


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"is_causal": False}, ValueError, "is_causal must be True"),
    ({"return_state": True}, ValueError, "initial_state and return_state cannot be combined with state"),
    (
        {"initial_state": torch.zeros(B, HKV, 28, D + 1)},
        ValueError,
        "initial_state and return_state cannot be combined",
    ),
    ({"backend": "chunked"}, ValueError, "backend must be 'auto'"),
    ({"enable_gqa": False}, ValueError, "enable_gqa"),
    ({"attn_mask": torch.ones(B, HQ, 1, N, dtype=torch.bool)}, ValueError, "attn_mask must hide a key from all heads"),
    ({"order": 9}, ValueError, "order must be from 1 to 4, got 9"),
    ({"state": torch.zeros(2)}, TypeError, "state must be a FastmaxState, got Tensor"),
]


@pytest.mark.parametrize(("change", "kind", "message"), REFUSED)
def test_refusals(change: dict[str, Any], kind: type[Exception], message: str) -> None:
    state = empty()
    with pytest.raises(kind, match=message):
        fastmax_attention(*tokens(), **{"is_causal": True, "enable_gqa": True, "state": state, **change})
    assert "order=None" in repr(state)
    assert state.tokens.tolist() == [0] * B


@pytest.mark.parametrize("shape", [(N,), (1, N), (B, 1, 1, N), (1, 1, 1, N)])
def test_masks_broadcast_as_without_a_state(shape: tuple[int, ...]) -> None:
    x, mask = tokens(), torch.rand(shape) < 0.7
    expected = fastmax_attention(*x, mask, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(attend(empty(), x, attn_mask=mask), expected)
