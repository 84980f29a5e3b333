"""A call like one before gives the same as the first, and refuses and differentiates as if it were the first."""

from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

from fastmax import _eager_path, fastmax_attention
from fastmax.backends import native
from fastmax.call import OutputGrads
from fastmax.plan import Plan
from tests.backends.conformance import make, threads
from tests.support import randn

if not native.levels():
    pytest.skip("there are no native kernels to prepare a call for", allow_module_level=True)


@pytest.fixture(autouse=True)
def _forget() -> None:
    _eager_path.clear_prepared_calls()


def inputs(tokens: int = 20, dtype: torch.dtype = torch.float32) -> Any:
    """As from a projection: heads inside of tokens."""
    return [randn(2, tokens, 3, 8, dtype=dtype).transpose(1, 2) for _ in range(3)]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"is_causal": True},
    {"order": 1},
    {"order": 3},
    {"scale": 0.5},
    {"normalize": False},
    {"backend": "native"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_the_second_call_takes_the_short_way_to_the_same_numbers(options: dict[str, Any], dtype: torch.dtype) -> None:
    q, k, v = inputs(dtype=dtype)
    first = fastmax_attention(q, k, v, **options)
    assert _eager_path.count_prepared_calls() == 1
    second = fastmax_attention(q, k, v, **options)
    assert _eager_path.count_prepared_calls() == 1
    assert torch.equal(first, second)
    assert first.stride() == second.stride()
    assert first.dtype == second.dtype
    other = inputs(dtype=dtype)
    short = fastmax_attention(*other, **options)
    _eager_path.clear_prepared_calls()
    assert torch.equal(short, fastmax_attention(*other, **options))


def test_what_differs_in_anything_is_another_call() -> None:
    q, k, v = inputs()
    results = {str(options): fastmax_attention(q, k, v, **options) for options in OPTIONS[:-1]}
    assert _eager_path.count_prepared_calls() == len(OPTIONS) - 1
    for options in OPTIONS[:-1]:
        assert torch.equal(fastmax_attention(q, k, v, **options), results[str(options)])
    flat: Any = [x.contiguous() for x in (q, k, v)]
    assert torch.equal(fastmax_attention(*flat), results["{}"])
    assert torch.equal(fastmax_attention(*flat), results["{}"])
    longer = inputs(21)
    fastmax_attention(*longer)
    assert fastmax_attention(*longer).shape == (2, 3, 21, 8)


@pytest.mark.parametrize(
    "bad",
    [
        {"is_causal": 1},
        {"dropout_p": False},
        {"dropout_p": 1.5},
        {"order": 2.0},
        {"order": [2]},
        {"normalize": 1},
        {"scale": True},
        {"scale": [1.0]},
        {"enable_gqa": 0},
        {"return_state": 0},
        {"dropout_mode": "cubic"},
        {"backend": "best"},
        {"backend": ["auto"]},
    ],
    ids=str,
)
def test_a_bad_argument_is_refused_after_a_good_call(bad: dict[str, Any]) -> None:
    q, k, v = inputs()
    for options in ({}, {"is_causal": True}, {"scale": 1.0}):
        fastmax_attention(q, k, v, **options)
    with pytest.raises((TypeError, ValueError), match=next(iter(bad))):
        fastmax_attention(q, k, v, **bad)


def test_gradients_are_there_when_they_are_wanted() -> None:
    q, k, v = inputs()
    plain = fastmax_attention(q, k, v)
    leaves: Any = [x.clone().requires_grad_() for x in (q, k, v)]
    with torch.no_grad():
        fastmax_attention(*leaves)
        assert not fastmax_attention(*leaves).requires_grad
    o = fastmax_attention(*leaves)
    assert o.requires_grad
    assert torch.equal(o, plain)
    o.sum().backward()
    assert all(x.grad is not None for x in leaves)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_sum_over_keys_is_kept_for_the_backward_pass(workers: int) -> None:
    """Keep the sum if it is small. The gradients are those of a pass that sums again; a causal pass needs every prefix."""
    q, k, v, do = (torch.randn(1, 2, 200, 5, dtype=torch.float64) for _ in range(4))
    with threads(workers):
        for is_causal in (False, True):
            leaves: Any = [x.clone().requires_grad_() for x in (q, k, v)]
            o = fastmax_attention(*leaves, is_causal=is_causal)
            assert torch.equal(o, fastmax_attention(q, k, v, is_causal=is_causal)), "keeping it changes nothing else"
            kept = [x for x in o.grad_fn.saved_tensors if x is not None]
            assert ((1, 2, 21, 6) in [tuple(x.shape) for x in kept]) is not is_causal
            found = torch.autograd.grad(o, leaves, do)
            call = make(q, k, v, is_causal=is_causal, scale=1.0)
            o, g, _ = native.forward(call, Plan("factorized"))
            expected = native.backward(call, Plan("factorized"), o, g, OutputGrads(do, None, None))
            for actual, other in zip(found, expected[:3], strict=True):
                torch.testing.assert_close(actual, other, rtol=1e-12, atol=1e-12)
    short: Any = [x[:, :, :20].clone().requires_grad_() for x in (q, k, v)]
    assert all(x is None or x.dim() < 4 or x.shape[2] == 20 for x in fastmax_attention(*short).grad_fn.saved_tensors)


def test_more_than_plain_arguments_is_never_taken_for_plain() -> None:
    q, k, v = inputs()
    plain = fastmax_attention(q, k, v)
    mask = torch.ones(2, 1, 1, 20, dtype=torch.bool)
    mask[..., 10:] = False
    assert not torch.equal(fastmax_attention(q, k, v, mask), plain)
    _, state = fastmax_attention(q, k, v, return_state=True)
    assert not torch.equal(fastmax_attention(q, k, v, initial_state=state), plain)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert fastmax_attention(q, k, v).dtype == torch.bfloat16
    assert not torch.equal(fastmax_attention(q, k, v, scale=torch.tensor(0.3)), plain)
    assert _eager_path.count_prepared_calls() == 1


def test_transforms_see_the_op() -> None:
    q, k, v = inputs()
    plain = fastmax_attention(q, k, v)
    seen = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Watch():
        assert torch.equal(fastmax_attention(q, k, v), plain)
    assert "fastmax.forward.default" in seen


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # inside of torch's make_dual
def test_forward_derivatives_are_refused_not_dropped() -> None:
    q, k, v = inputs()
    fastmax_attention(q, k, v)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward-mode"):
        fastmax_attention(forward_ad.make_dual(q, torch.ones_like(q)), k, v)


def test_a_pending_negation_counts() -> None:
    q, k, v = inputs()
    negated = torch._neg_view(v)
    assert negated.is_neg()
    assert torch.equal(fastmax_attention(q, k, negated), -fastmax_attention(q, k, v))


def test_broadcast_inputs_are_not_prepared() -> None:
    q, k, v = inputs()
    assert torch.equal(fastmax_attention(q, k[:1], v[:1]), fastmax_attention(q, k[:1].expand_as(k), v[:1].expand_as(v)))
    assert torch.equal(fastmax_attention(q, k[:1], v[:1]), fastmax_attention(q, k[:1], v[:1]))
    fastmax_attention(q[0], k[0], v[0])
    assert fastmax_attention(q[0], k[0], v[0]).shape == (3, 20, 8)


def test_a_default_device_is_not_taken_for_that_of_the_tensors() -> None:
    q, k, v = inputs()
    plain = fastmax_attention(q, k, v)
    scale = torch.ones(3, requires_grad=True)
    with torch.device("meta"):
        assert torch.equal(fastmax_attention(q, k, v), plain)
        scaled = fastmax_attention(q, k, v, scale=scale)
        (grad,) = torch.autograd.grad(scaled.sum(), [scale])
    assert torch.equal(scaled, plain)
    assert grad.device.type == "cpu"


def test_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_eager_path, "MAX_PREPARED_CALLS", 3)
    for tokens in range(1, 9):
        fastmax_attention(*inputs(tokens))
        assert 1 <= _eager_path.count_prepared_calls() <= 3
