"""FastmaxState must be the causal attention token by token, however the tokens arrive."""

import copy
import pickle
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from fastmax import fastmax_attention, reference_attention
from fastmax.call import NORMALIZATIONS
from fastmax.core import default_scale
from fastmax.features import feature_count
from fastmax.state import FastmaxState, decode
from fastmax.state.recent import capacity
from tests.support import randn

B, HQ, HKV, N, D, DV = 3, 4, 2, 41, 6, 5
assert 2 * capacity(D, DV, 2) < N, "tokens must go from the recent ones to the sum, more than once"


def tokens(dtype: torch.dtype = torch.float64, grad: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    shapes = (B, HQ, N, D), (B, HKV, N, D), (B, HKV, N, DV)
    q, k, v = (randn(*shape, dtype=dtype, grad=grad) for shape in shapes)
    return q, k, v


def complete(options: dict[str, Any], head_dim: int) -> dict[str, Any]:
    """The options of a function with its defaults."""
    order = options.get("order", 2)
    return {"order": order, "scale": default_scale(order, head_dim), "normalize": True, **options}


def empty(**options: Any) -> FastmaxState:
    return FastmaxState.empty(B, HKV, D, DV, **{"dtype": torch.float64, **complete(options, D)})


class Fused:
    """A backend with a step of its own."""

    def __init__(self) -> None:
        self.step = Mock()

    def can_step(self, device: torch.device, order: int, head_dim: int, value_dim: int) -> bool:
        return (device.type, head_dim, value_dim) == ("cpu", D, DV) and 1 <= order <= 4

    def prepare_step(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        total: Tensor | None,
        recent_k: Tensor,
        recent_u: Tensor,
        recent_decay: Tensor | None,
        total_decay: Tensor | None,
        log_decay: Tensor | None,
        **options: Any,
    ) -> decode.Step:
        """Follow the contract literally, and overwrite memory without autograd's knowledge."""
        assert q.shape == (B, HQ, 1, D)
        assert total is None or total.is_contiguous()
        assert recent_k.is_contiguous()
        assert recent_u.is_contiguous()
        if recent_decay is not None:
            assert recent_decay.is_contiguous()
            assert recent_decay.shape == recent_k.shape[:3]
        assert options["normalize"] in NORMALIZATIONS
        definition = decode.prepare_step(
            q, k, v, total, recent_k, recent_u, recent_decay, total_decay, log_decay, **options
        )

        def step(
            q: Tensor, k: Tensor, v: Tensor, head_scale: Any, key_mask: Any, log_decay: Any, count: int, fold: int
        ) -> Tensor:
            self.step()
            assert recent_k.shape[2] == recent_u.shape[2] > count - fold
            assert not fold or (total is not None and count == recent_k.shape[2])
            assert (recent_decay is None) == (log_decay is None)
            if log_decay is not None:
                assert log_decay.shape == (B, HKV, 1)
                assert log_decay.dtype == recent_k.dtype
            before = recent_k._version if not recent_k.is_inference() else 0
            o = definition(q, k, v, head_scale, key_mask, log_decay, count, fold)
            assert recent_k.is_inference() or recent_k._version > before
            return o

        return step


@pytest.fixture(params=["composed", "fused", "auto"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Fused | None:
    """Never in place, by a backend that has a step, and with what this machine has."""
    if request.param == "composed":
        monkeypatch.setattr(FastmaxState, "_may_step_in_place", lambda *_: False)
    if request.param == "fused":
        fused = Fused()
        monkeypatch.setattr(decode, "load", lambda name: fused if name == "chunked" else object())
        return fused
    return None


MASK = torch.tensor(
    [[True] * N, [False, False] + [True] * (N - 2), [True, False, True, True, False] + [True] * (N - 5)]
)
SCALES: dict[str, Any] = {
    "default": {},
    "number": {"scale": 0.4},
    "per head": {"scale": torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)},
    "one tensor": {"scale": torch.tensor(0.3)},
    "raw": {"normalize": False, "scale": 0.2},
    "order 1": {"order": 1},
    "order 3": {"order": 3},
    "order 4": {"order": 4, "scale": 0.3},
}


@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize("options", SCALES.values(), ids=SCALES)
@pytest.mark.parametrize("prefill", [0, 1, 20, N])
def test_decoding_is_the_causal_attention(
    options: dict[str, Any], padded: bool, grad: bool, prefill: int, kernel: Fused | None
) -> None:
    q, k, v = tokens(grad=grad)
    mask = MASK if padded else None
    expected = reference_attention(
        q, k, v, None if mask is None else mask[:, None, None, :], is_causal=True, enable_gqa=True, **options
    )
    state = empty(**options)
    with torch.set_grad_enabled(grad):
        parts = [state.step(*(x[:, :, :prefill] for x in (q, k, v)), None if mask is None else mask[:, :prefill])]
        for i in range(prefill, N):
            now = slice(i, i + 1)
            parts.append(state.step(q[:, :, now], k[:, :, now], v[:, :, now], None if mask is None else mask[:, now]))
    torch.testing.assert_close(torch.cat(parts, 2), expected)
    assert state.tokens.tolist() == (MASK.sum(-1).tolist() if padded else [N] * B)
    if kernel is not None:
        assert kernel.step.call_count == (0 if grad else N - prefill + (prefill == 1))


def test_steps_write_beside_the_others_unless_autocast_wants_a_say(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (x[:, :, :1] for x in tokens(torch.float32))
    state, fused = empty(dtype=torch.float32), Fused()
    monkeypatch.setattr(decode, "load", lambda name: fused if name == "chunked" else object())
    with torch.no_grad():
        state.step(q, k, v)
        address = state._now().recent.keys.data_ptr()
        state.step(q, k, v)
        assert state._now().recent.keys.data_ptr() == address
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert state.step(q, k, v).dtype == torch.bfloat16
            assert state.read(q).dtype == torch.bfloat16
    assert fused.step.call_count == 2
    state.step(q, k, v)
    assert fused.step.call_count == 3, "nothing here requires a gradient"
    state.step(q.requires_grad_(), k, v)
    assert fused.step.call_count == 3
    assert state.tokens.tolist() == [5] * B


@pytest.mark.parametrize("split", [0, 1, 5, N])
def test_states_add_up_and_are_read_by_all_queries(split: int) -> None:
    q, k, v = tokens()
    a, b = empty(), empty()
    a.update(k[:, :, :split], v[:, :, :split], MASK[:, :split])
    b.update(k[:, :, split:], v[:, :, split:], MASK[:, split:])
    both = a + b
    expected = reference_attention(q, k, v, MASK[:, None, None, :], enable_gqa=True)
    torch.testing.assert_close(both.read(q), expected)
    torch.testing.assert_close((b + a).read(q), expected)
    assert both.tokens.tolist() == MASK.sum(-1).tolist()
    assert a.tokens.tolist() == MASK[:, :split].sum(-1).tolist(), "the parts must be left alone"


def test_an_empty_state_reads_as_zeros() -> None:
    assert torch.equal(empty().read(randn(B, HQ, 2, D)), torch.zeros(B, HQ, 2, DV, dtype=torch.float64))


@pytest.mark.usefixtures("kernel")
def test_prefill_by_the_attention_itself() -> None:
    q, k, v = tokens()
    _, tensor = fastmax_attention(
        q[:, :, :5], k[:, :, :5], v[:, :, :5], is_causal=True, enable_gqa=True, return_state=True
    )
    state = FastmaxState(tensor, torch.full((B,), 5), head_dim=D, **complete({}, D))
    before = tensor.clone()
    with torch.no_grad():
        o = torch.cat([state.step(*(x[:, :, i : i + 1] for x in (q, k, v))) for i in range(5, N)], 2)
    torch.testing.assert_close(o, reference_attention(q, k, v, is_causal=True, enable_gqa=True)[:, :, 5:])
    assert torch.equal(tensor, before), "a tensor that came from elsewhere must not be overwritten"


@pytest.mark.parametrize("learned", [False, True], ids=["", "learned scale"])
def test_gradients_flow_through_every_step(learned: bool) -> None:
    inputs = list(tokens(grad=True))
    scale = torch.full((HQ,), 0.3, dtype=torch.float64, requires_grad=True)
    leaves = [*inputs, scale] if learned else inputs
    q, k, v = inputs
    option = {"scale": scale if learned else 0.3}
    state = empty(**option)
    state.update(k[:, :, :2], v[:, :, :2])
    o = torch.cat([state.step(*(x[:, :, i : i + 1] for x in inputs)) for i in range(2, N)], 2)
    do = torch.randn_like(o)
    expected = reference_attention(q, k, v, is_causal=True, enable_gqa=True, **option)[:, :, 2:]
    for got, wanted in zip(torch.autograd.grad(o, leaves, do), torch.autograd.grad(expected, leaves, do), strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_grad_no_graph_is_kept(context: Any) -> None:
    q, k, v = tokens(grad=True)
    state = empty()
    with context():
        for i in range(3):
            o = state.step(*(x[:, :, i : i + 1] for x in (q, k, v)))
            assert not o.requires_grad
    assert state.tensor.grad_fn is None
    assert not state.tensor.requires_grad


@pytest.mark.usefixtures("kernel")
def test_a_step_without_grad_spares_what_a_graph_has_saved() -> None:
    q, k, v = tokens(grad=True)
    results = []
    for disturbed in (False, True):
        state = empty()
        with torch.no_grad():
            state.step(*(x[:, :, :1] for x in (q, k, v)))
        o = state.read(q)  # saves the state for its backward pass
        if disturbed:
            with torch.no_grad():
                state.step(*(x[:, :, 1:2] for x in (q, k, v)))
        results.append(torch.autograd.grad(o.square().sum(), q)[0])
    assert torch.equal(*results)


def test_detached_states_cut_the_graph() -> None:
    q, k, v = tokens(grad=True)
    state = empty()
    state.update(k[:, :, :3], v[:, :, :3])
    assert state.tensor.requires_grad
    cut = state.detach()
    assert not cut.tensor.requires_grad
    assert torch.equal(cut.read(q.detach()), state.read(q.detach()).detach())


def test_beams() -> None:
    q, k, v = tokens()
    state = empty(scale=0.3)
    state.update(k, v, MASK)
    alone = state.read(q)
    wide = state.repeat_interleave(2)
    assert torch.equal(wide.read(q.repeat_interleave(2, 0)), alone.repeat_interleave(2, 0))
    assert wide.tokens.tolist() == state.tokens.repeat_interleave(2).tolist()
    index = torch.tensor([2, 0, 0])
    beams = state.reorder(index)
    assert torch.equal(beams.read(q[index]), alone[index])
    assert beams.tokens.tolist() == state.tokens[index].tolist()
    assert beams.scale == 0.3
    one = state.select(torch.tensor([1]))
    assert torch.equal(one.read(q[1:2]), alone[1:2])
    with pytest.raises(ValueError, match=r"one entry per batch element, shape \(3,\), got \(1,\)"):
        state.reorder(torch.tensor([1]))


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("how", ["clone", "detach", "to", "select", "repeat", "deepcopy"])
def test_copies_do_not_share_memory(how: str) -> None:
    q, k, v = tokens()
    with torch.no_grad():
        state = empty()
        state.step(*(x[:, :, :1] for x in (q, k, v)))
        copies = {
            "clone": state.clone,
            "detach": state.detach,
            "to": lambda: state.to("cpu", torch.float64),
            "select": lambda: state.select(torch.arange(B)),
            "repeat": lambda: state.repeat_interleave(1),
            "deepcopy": lambda: copy.deepcopy(state),
        }
        twin = copies[how]()
        before = state.tensor.clone()
        twin.step(*(x[:, :, 1:2] for x in (q, k, v)))
        assert torch.equal(state.tensor, before)
        assert state.tokens.tolist() == [1] * B
        assert twin.tokens.tolist() == [2] * B


def test_dtypes() -> None:
    q, k, v = tokens(torch.bfloat16)
    state = empty(dtype=torch.float32)
    o = state.step(q, k, v)
    assert (o.dtype, state.dtype, state.read(q).dtype) == (torch.bfloat16, torch.float32, torch.bfloat16)
    double = empty()
    assert double.step(q, k, v).dtype == torch.bfloat16
    with torch.no_grad():
        assert double.clone().step(*(x[:, :, :1] for x in (q, k, v))).dtype == torch.bfloat16
    torch.testing.assert_close(double.tensor, state.to(dtype=torch.float64).tensor, rtol=1e-5, atol=1e-5)
    assert double.to(dtype=torch.float32).dtype == torch.float32
    with pytest.raises(ValueError, match=r"a state must be float32 or float64.*got torch\.bfloat16"):
        double.to(dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"key is float64, so the state must be created with dtype=torch\.float64"):
        state.update(k.double(), v)


def test_sizes() -> None:
    state = FastmaxState.empty(2, 3, 64, 64, 2)
    assert state.nbytes == 2 * 3 * (feature_count(64, 2) * 65 + 128 * (64 + 65)) * 4 == 3_742_488
    assert FastmaxState.break_even(64) == 1219
    assert FastmaxState.break_even(64, cache_dtype=torch.bfloat16) == 2437
    for head_dim, value_dim, order in ((64, 64, 2), (8, 5, 1), (16, 16, 3)):
        cut = FastmaxState.break_even(head_dim, value_dim, order)
        size = FastmaxState.empty(1, 1, head_dim, value_dim, order).nbytes
        assert (cut - 1) * (head_dim + value_dim) * 4 <= size < cut * (head_dim + value_dim) * 4


def test_state_dicts() -> None:
    q, k, v = tokens()
    scale = torch.tensor([0.1, 0.2, 0.3, 0.4], requires_grad=True)
    state = empty(scale=scale)
    state.update(k, v, MASK)
    fresh = empty(scale=scale)
    fresh.load_state_dict(state.state_dict())
    assert torch.equal(fresh.read(q), state.read(q))
    assert torch.equal(fresh.tokens, state.tokens)
    assert fresh.scale is scale
    with torch.no_grad():
        fresh.step(*(x[:, :, :1] for x in (q, k, v)))
    assert state.tokens.tolist() == MASK.sum(-1).tolist()
    wide = state.repeat_interleave(2)
    fresh.load_state_dict(wide.state_dict())
    assert fresh.batch == 2 * B
    for twin in (pickle.loads(pickle.dumps(state.detach())), FastmaxState.from_state_dict(state.state_dict())):
        assert torch.equal(twin.read(q), state.read(q))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"order": 1}, "expected order=2, got order=1"),
        ({"scale": 0.5}, r"expected scale=1\.0, got scale=0\.5"),
        ({"normalize": False}, "expected normalize=True, got normalize=False"),
        ({"dtype": torch.float32}, r"expected dtype=torch\.float64, got dtype=torch\.float32"),
    ],
)
def test_different_states_do_not_mix(change: dict[str, Any], message: str) -> None:
    state, other = empty(), empty(**change)
    if "order" in change:
        message = message.replace("order=2,", r"order=2, scale=1\.0,").replace("order=1", "order=1, scale=0.16")
    for mix in (lambda: state + other, lambda: state.load_state_dict(other.state_dict())):
        with pytest.raises(ValueError, match=message):
            mix()
    assert state.tokens.tolist() == [0] * B


def test_states_of_different_batches_do_not_add() -> None:
    with pytest.raises(ValueError, match="to be added: expected batch=3, got batch=6"):
        empty() + empty().repeat_interleave(2)
    with pytest.raises(TypeError):
        empty() + 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda s: s.update(randn(B, HKV, 2, D + 1), randn(B, HKV, 2, DV)),
            r"key must be .*\(3, 2, any, 6\), got \(3, 2, 2, 7\)",
        ),
        (
            lambda s: s.update(randn(B, HKV, 2, D), randn(B, HKV, 3, DV)),
            r"value must be .*\(3, 2, 2, 5\), got \(3, 2, 3, 5\)",
        ),
        (lambda s: s.update(randn(1, HKV, 2, D), randn(1, HKV, 2, DV)), r"key must be .*got \(1, 2, 2, 6\)"),
        (lambda s: s.read(randn(B, 3, 2, D)), "query heads must be a multiple of the 2 of the state, got 3"),
        (lambda s: s.read(randn(B, HQ, D)), r"query must be .*\(3, any, any, 6\), got \(3, 4, 6\)"),
        (
            lambda s: s.step(randn(B, HQ, 1, D), randn(B, HKV, 2, D), randn(B, HKV, 2, DV)),
            r"query must be .*\(3, any, 2, 6\)",
        ),
        (
            lambda s: s.update(randn(B, HKV, 2, D), randn(B, HKV, 2, DV), torch.ones(B, 2)),
            r"key_mask must be boolean.*\(3, 2\), got torch\.float32",
        ),
        (
            lambda s: FastmaxState(s.tensor, s.tokens, head_dim=D + 1, **complete({}, D)),
            r"F = 36 for order 2 at D = 7, got \(3, 2, 28, 6\)",
        ),
        (
            lambda s: FastmaxState(s.tensor, s.tokens[:1], head_dim=D, **complete({}, D)),
            r"tokens must be int64 of shape \(3,\)",
        ),
        (lambda _: empty(order=5), "order must be at least 1 and at most 4, got 5"),
        (lambda _: empty(scale=float("inf")), "scale must be finite, got inf"),
        (lambda _: empty(scale=10**400), "scale must be finite, got 1000"),
        (lambda _: empty(scale=torch.ones(3)), "a multiple of the 2 key heads, got 3"),
        (lambda _: empty(dtype=torch.float16), r"a state must be float32 or float64.*got torch\.float16"),
    ],
)
def test_refusals(call: Any, message: str) -> None:
    state = empty()
    with pytest.raises(ValueError, match=message):
        call(state)
    assert state.tokens.tolist() == [0] * B


@pytest.mark.parametrize("count", [1, 30])
def test_a_refused_step_leaves_the_state_as_it_was(count: int) -> None:
    q, k, v = tokens()
    scale = torch.full((HQ,), 0.3, dtype=torch.float64)
    state = empty(scale=scale)
    state.update(k[:, :, :10], v[:, :, :10])
    before = state.read(q)
    given = q[:, :, :count].requires_grad_(), k[:, :, :count], v[:, :, :count]
    with pytest.raises(ValueError, match="query heads must be the 4 that scale has values for, got 2"):
        state.step(given[0][:, :2], *given[1:])
    scale.fill_(torch.nan)
    with pytest.raises(ValueError, match="scale must be finite"):
        state.step(*given)
    scale.fill_(0.3)
    assert torch.equal(state.read(q), before)
    assert state.tokens.tolist() == [10] * B


def test_a_step_compiles_in_one_graph() -> None:
    torch.compiler.reset()
    q, k, v = tokens()
    state = empty()
    step = torch.compile(lambda *token: state.step(*token), fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        o = torch.cat([step(*(x[:, :, i : i + 1] for x in (q, k, v))) for i in range(N)], 2)
    torch.testing.assert_close(o, reference_attention(q, k, v, is_causal=True, enable_gqa=True))
    assert state.tokens.tolist() == [N] * B


def test_repr() -> None:
    assert repr(FastmaxState.empty(1, 2, 4, 3, **complete({}, 4))) == (
        "FastmaxState(batch=1, num_kv_heads=2, head_dim=4, value_dim=3, order=2, scale=1.0, normalize=True, "
        "decays=None, dtype=torch.float32, device=cpu, nbytes=1504)"
    )


def test_a_scale_that_changes_between_steps_is_the_next_steps() -> None:
    """A step is prepared with the scale of the one before."""
    q, k, v = tokens()
    state = empty(scale=0.3)
    with torch.no_grad():
        for i in range(3):
            state.step(*(x[:, :, i : i + 1] for x in (q, k, v)))
        state.scale = 0.7
        o = state.step(*(x[:, :, 3:4] for x in (q, k, v)))
    expected = reference_attention(q[:, :, 3:4], k[:, :, :4], v[:, :, :4], scale=0.7, enable_gqa=True)
    torch.testing.assert_close(o, expected)
