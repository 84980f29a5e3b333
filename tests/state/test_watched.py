"""Autograd and tracers see every operation on a state, and tensors that they keep do not change."""

import copy
import pickle
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from fastmax import reference_attention
from fastmax.state import FastmaxState, decode
from tests.support import randn

B, H, D = 2, 2, 4
OPTIONS: dict[str, Any] = {"order": 2, "scale": 0.5, "normalize": True}


def token(count: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (randn(B, H, count, D, dtype=torch.float32) for _ in range(3))
    return q, k, v


def empty() -> FastmaxState:
    return FastmaxState.empty(B, H, D, **OPTIONS)


def filled(count: int) -> FastmaxState:
    state = empty()
    with torch.no_grad():
        for _ in range(count):
            state.step(*token())
    return state


# none in the sum yet, some there, and just before some go there
COUNTS = pytest.mark.parametrize("count", [3, 16, 40])


@pytest.mark.parametrize("count", [0, 20])
def test_fake_tensors(count: int) -> None:
    with FakeTensorMode(), torch.no_grad():
        state = empty()
        for _ in range(count + 1):
            o = state.step(*(torch.randn(B, H, 1, D) for _ in range(3)))
        assert o.shape == state.read(o).shape == (B, H, 1, D)
        state.update(torch.randn(B, H, 100, D), torch.randn(B, H, 100, D))
        assert state.tensor.shape == (B, H, 15, D + 1)


@COUNTS
@pytest.mark.filterwarnings("ignore:.torch.jit.trace.*is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("tracer", ["jit", "fx"])
def test_what_a_tracer_records_is_a_step_for_any_token(count: int, tracer: str) -> None:
    state, example, other = filled(count), token(), token()

    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return state.clone().step(q, k, v)

    with torch.no_grad():
        expected = step(*other)
        traced = torch.jit.trace(step, example, check_trace=False) if tracer == "jit" else make_fx(step)(*example)
        torch.testing.assert_close(traced(*other), expected)
        assert not torch.allclose(expected, step(*example))


@COUNTS
def test_pending_negations_are_seen(count: int) -> None:
    state = filled(count)
    with torch.no_grad():
        for at in range(3):
            q, k, v = token()
            given = [q, k, v]
            given[at] = torch._neg_view(-given[at])
            assert given[at].is_neg()
            torch.testing.assert_close(state.clone().step(*given), state.clone().step(q, k, v))


def test_function_transforms() -> None:
    """Step where the sum is neither started nor written, which is the op's work."""
    state = filled(40)
    q, k, v = token()

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return state.clone().step(q, k, v).square().sum()

    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    expected = torch.autograd.grad(loss(*leaves), leaves)
    for got, wanted in zip(torch.func.grad(loss, (0, 1, 2))(q, k, v), expected, strict=True):
        torch.testing.assert_close(got, wanted)


@COUNTS
def test_a_graph_survives_later_steps(count: int) -> None:
    """Those without grad write in place: never where a graph keeps something."""
    results = []
    for disturbed in (False, True):
        torch.manual_seed(1)
        state = filled(count)
        q, k, v = (x.requires_grad_() for x in token())
        outputs = [state.read(q), state.tensor]
        outputs.append(state.step(q, k, v))
        outputs.append(state.read(q))
        if disturbed:
            with torch.no_grad():
                for _ in range(30):
                    state.step(*token())
        results.append(torch.autograd.grad(sum(o.square().sum() for o in outputs), (q, k, v)))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


def test_in_place_steps_raise_the_version() -> None:
    state = filled(1)
    buffer = state._now().recent.keys
    before = buffer._version
    with torch.no_grad():
        state.step(*token())
    assert buffer._version > before, "who saved it for a backward pass must be told"


def test_states_of_inference_mode_go_on_outside_of_it() -> None:
    q, k, v = token(40)
    state = empty()
    with torch.inference_mode():
        parts = [state.step(*(x[:, :, i : i + 1] for x in (q, k, v))) for i in range(3)]
    with torch.no_grad():
        parts += [state.step(*(x[:, :, i : i + 1] for x in (q, k, v))) for i in range(3, 40)]
    torch.testing.assert_close(torch.cat(parts, 2), reference_attention(q, k, v, is_causal=True, scale=0.5))


SNAPSHOTS: dict[str, Any] = {
    "state_dict": lambda state: FastmaxState.from_state_dict(state.state_dict()),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "constructor": lambda state: FastmaxState(state.tensor, state.tokens, head_dim=D, **OPTIONS),
    "add": lambda state: state + empty(),
    "add to": lambda state: empty() + state,
}


@COUNTS
@pytest.mark.parametrize("how", SNAPSHOTS.values(), ids=SNAPSHOTS)
def test_a_snapshot_is_a_snapshot(count: int, how: Any) -> None:
    state, q = filled(count), torch.randn(B, H, 1, D)
    with torch.no_grad():
        twin = how(state)
        torch.testing.assert_close(twin.read(q), state.read(q))
        for moved, kept in ((state, twin), (twin, state)):
            before = kept.read(q), kept.tensor, kept.tokens.clone()
            for _ in range(20):
                moved.step(*token())
            moved.tokens.add_(5)
            for got, wanted in zip((kept.read(q), kept.tensor, kept.tokens), before, strict=True):
                assert torch.equal(got, wanted)


@COUNTS
def test_a_state_dict_does_not_change(count: int) -> None:
    scale = torch.tensor([0.5, 0.6])
    state = filled(count)
    state.scale = scale
    saved = state.state_dict()
    before = copy.deepcopy(saved)
    loaded = FastmaxState.from_state_dict(saved)
    with torch.no_grad():
        for one in (state, loaded):
            for _ in range(20):
                one.step(*token())
            one.tokens.add_(1)
        scale.add_(1)
    for name, x in before.items():
        assert torch.equal(saved[name], x) if isinstance(x, Tensor) else saved[name] == x, name
    given = state.tensor, state.tokens.clone()
    built = FastmaxState(*given, head_dim=D, **OPTIONS)
    expected = built.read(torch.ones(B, H, 1, D))
    given[0].zero_()
    given[1].zero_()
    assert torch.equal(built.read(torch.ones(B, H, 1, D)), expected)
    assert bool((built.tokens > 0).all())


def test_no_heads_are_refused() -> None:
    with pytest.raises(ValueError, match="num_kv_heads must be at least 1, got 0"):
        FastmaxState.empty(1, 0, D)
    with pytest.raises(ValueError, match="num_kv_heads must be at least 1, got 0"):
        FastmaxState(torch.zeros(1, 0, 15, D + 1), torch.zeros(1, dtype=torch.int64), head_dim=D, **OPTIONS)


READS: dict[str, Any] = {
    "tokens": lambda state: state.tokens,
    "tensor": lambda state: state.tensor,
    "log_decay": lambda state: state.log_decay,
    "nbytes": lambda state: state.nbytes,
    "repr": repr,
    "clone": lambda state: state.clone(),
    "select": lambda state: state.select(torch.tensor([0])),
    "state_dict": lambda state: state.state_dict(),
    "pickle": pickle.dumps,
    "add": lambda state: state + state,
    "read": lambda state: state.read(torch.randn(B, H, 3, D)),
    "read with gradients": lambda state: state.read(torch.randn(B, H, 3, D, requires_grad=True)),
}


@COUNTS
@pytest.mark.parametrize("how", READS.values(), ids=READS)
def test_reading_does_not_change_a_state(count: int, how: Any) -> None:
    """Neither what it holds nor where: the next step writes to the same memory."""
    state = filled(count)

    def look() -> dict[str, Any]:
        buffer = getattr(state, "_buffer", None)
        return {**vars(state), **({} if buffer is None else {f"buffer {name}": x for name, x in vars(buffer).items()})}

    before = look()
    how(state)
    after = look()
    assert before.keys() == after.keys()
    changed = [name for name, x in before.items() if after[name] is not x]
    assert not changed


def test_a_prepared_step_keeps_its_table_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "load", lambda _: object())
    state = filled(40)
    with torch.no_grad():
        for _ in range(3):
            state.step(*token())
        made = Mock(wraps=torch.triu_indices)
        monkeypatch.setattr(torch, "triu_indices", made)
        for _ in range(5):
            state.step(*token())
    assert made.call_count == 0
