"""The dense form by FlexAttention: what it computes, without a compiler, on the CPU. It has no backward pass there."""

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fastmax.backends import batched
from fastmax.backends.batched import flex
from fastmax.backends.batched.work import takes_dense_form
from fastmax.call import Call, OutputGrads
from fastmax.plan import Plan
from tests.backends.conformance import defined, make, output_grads
from tests.support import randn

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


def calls() -> Iterator[Call]:
    q, k, v = randn(2, 4, 50, 16), randn(2, 2, 50, 16), randn(2, 2, 50, 12)
    mask = torch.rand(2, 2, 50) < 0.7
    mask[:, :, 0] = True
    decay = torch.where(mask, -torch.rand(2, 2, 50, dtype=torch.float64), 0).masked_fill(
        torch.rand(2, 2, 50) < 0.1, -1e16
    )
    for order, scale in ((1, 1 / 16), (2, 1.0), (4, 0.25)):
        yield make(q, k, v, order=order, scale=scale)
        yield make(
            q, k, v, order=order, scale=scale, is_causal=True, key_mask=mask, log_decay=torch.where(mask, decay, 0)
        )


def by_formula(
    q: Tensor, k: Tensor, v: Tensor, *, score_mod: Callable[..., Tensor], block_mask: Any, scale: float, enable_gqa: bool,
    return_aux: Any,
) -> tuple[Tensor, Any]:  # fmt: skip
    """Compute with gradients what FlexAttention is defined to compute."""
    assert return_aux.lse
    groups = q.shape[1] // k.shape[1]
    assert enable_gqa == (groups > 1)
    k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    index = [
        torch.arange(n).view([-1 if i == d else 1 for i in range(4)]) for d, n in enumerate((*q.shape[:3], k.shape[2]))
    ]
    scores = score_mod(q @ k.mT * scale, *index)
    if block_mask is not None:
        scores = scores.masked_fill(~block_mask.mask_mod(*index), -torch.inf)
    return scores.softmax(-1) @ v, SimpleNamespace(lse=scores.logsumexp(-1))


def run(call: Call, function: Callable[..., Any], grads: OutputGrads | None = None) -> dict[str, Tensor]:
    """o, g and the gradients by the backend, with a function that takes the part of FlexAttention."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.nn.attention.flex_attention.flex_attention", function)
        o, g, _ = flex.forward(call, flex.attend)
        if grads is None:
            return {"o": o, "g": g}
        out = flex.backward(call, grads, flex.attend)
    return {"o": o, "g": g} | {f"d_{name}": x for name, x in out._asdict().items()}


@pytest.mark.parametrize(
    "call", list(calls()), ids=lambda call: f"order {call.options.order}, {call.options.is_causal}"
)
def test_flex_attention_computes_fastmax(call: Call) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    exact = defined(call, output_grads(call), exact=True)
    for name, x in run(call, flex_attention).items():
        torch.testing.assert_close(x, exact[name], rtol=1e-6, atol=1e-6)  # its logarithm of g is fp32
    for name, x in run(call, by_formula).items():
        torch.testing.assert_close(x, exact[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "call", list(calls()), ids=lambda call: f"order {call.options.order}, {call.options.is_causal}"
)
def test_gradients_are_those_of_the_formula(call: Call) -> None:
    grads = output_grads(call)
    exact = defined(call, grads, exact=True)
    for name, x in run(call, by_formula, grads).items():
        if name == "d_log_decay" and x.numel():
            x = torch.where(call.log_decay > -100, x, 0)
        torch.testing.assert_close(x, exact[name], rtol=1e-9, atol=1e-9)


def test_scales_per_head_and_dropped_tokens() -> None:
    q, k, v = randn(1, 4, 40, 16), randn(1, 2, 40, 16), randn(1, 2, 40, 16)
    call = make(q, k, v, head_scale=torch.rand(4, dtype=torch.float64) + 0.5, dropout_p=0.3, dropout_mode="1d",
                dropout_seed=torch.tensor(7))  # fmt: skip
    grads = output_grads(call)
    exact = defined(call, grads, exact=True)
    for name, x in run(call, by_formula, grads).items():
        torch.testing.assert_close(x, exact[name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("content", [torch.inf, torch.nan])
def test_a_later_value_that_is_not_finite_does_not_leak(content: float) -> None:
    """Zero times infinity is NaN, and FlexAttention multiplies all values of a tile."""
    q, k, v = randn(1, 2, 40, 16), randn(1, 1, 40, 16), randn(1, 1, 40, 16)
    before = run(make(q, k, v, is_causal=True), by_formula)["o"]
    v[..., 20, 3] = content
    o = run(make(q, k, v, is_causal=True), by_formula)["o"]
    assert not o[..., 20:, 3].isfinite().any()
    o[..., 20:, 3] = before[..., 20:, 3]
    torch.testing.assert_close(o, before)
    k[..., 30, :] = content
    o = run(make(q, k, v, is_causal=True), by_formula)["o"]
    assert not o[..., 30:, :].isfinite().any()
    assert o[..., :20, :].isfinite().all()


def test_it_is_compiled_as_one_graph() -> None:
    """With scales, padding and decays. Meanwhile a compiler for the CPU stands in for that of a GPU."""
    compiled = torch.compile(flex.attend, backend="aot_eager", dynamic=True, fullgraph=True)
    for call in calls():
        arguments = flex._inputs_of(call), flex._settings_of(call), flex._mask_of(call)
        for found, expected in zip(compiled(*arguments), flex.attend(*arguments), strict=True):
            torch.testing.assert_close(found, expected)


def test_weights_that_can_be_negative_are_refused_by_name() -> None:
    q = randn(1, 1, 9, 16, dtype=torch.float32)
    assert flex.refusal(make(q, q, q, order=1, scale=1 / 16)) is None
    for options in (
        {"order": 1, "scale": 0.25},
        {"order": 3, "scale": 1 / 16},
        {"order": 1, "scale": 1 / 16, "normalize": "none"},
    ):
        assert "can be negative" in str(flex.refusal(make(q, q, q, **options)))


def test_what_it_cannot_compute_is_refused() -> None:
    x, small, none = (randn(1, 1, n, d, dtype=torch.float32) for n, d in ((9, 16), (9, 8), (0, 16)))
    cu = torch.tensor([0, 9], dtype=torch.int32)
    seed = {"dropout_seed": torch.tensor(1), "dropout_p": 0.1}
    assert "16 to 256 channels" in str(flex.refusal(make(small, small, small)))
    assert flex.refusal(make(none, none, none)) == "there are no tokens"
    assert flex.refusal(make(x.double(), x, x)) == "it has no float64"
    assert "packed" in str(flex.refusal(make(x, x, x, cu_seqlens_q=cu, cu_seqlens_k=cu)))
    assert "dropout" in str(flex.refusal(make(x, x, x, **seed)))
    assert "state" in str(flex.refusal(make(x, x, x, return_state=True)))


def test_where_it_cannot_be_compiled_tiles_take_over_and_a_message_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(flex, "DEVICES", ("cpu",))
    monkeypatch.setattr(flex, "find_spec", lambda _: None)
    flex.compiled.cache_clear()
    q, k, v = (randn(1, 2, 40, 16, dtype=torch.float32) for _ in range(3))
    call = make(q, k, v, is_causal=True)
    with caplog.at_level(logging.WARNING, "fastmax"):
        found = [batched.forward(call, Plan("dense"))[0] for _ in range(2)]
    flex.compiled.cache_clear()
    assert [record.message for record in caplog.records] == [
        "fastmax: FlexAttention cannot be compiled here, so short sequences take slower products: triton is not installed"
    ]
    exact = defined(call, output_grads(call), exact=True)["o"]
    torch.testing.assert_close(found[0].double(), exact, rtol=1e-5, atol=1e-5)
    assert torch.equal(*found)


def test_it_makes_the_dense_form_cheaper() -> None:
    q = torch.empty(1, 1, 8192, 64)
    call = make(q, q, q, scale=1.0, is_causal=True)
    assert takes_dense_form(call, Plan(), batched.FLEX_SPEED)
    assert not takes_dense_form(call, Plan())
    longer = replace(
        call, q=q.expand(1, 1, 8192, 64).repeat(1, 1, 4, 1), k=q.repeat(1, 1, 4, 1), v=q.repeat(1, 1, 4, 1)
    )
    assert not takes_dense_form(longer, Plan(), batched.FLEX_SPEED)


def test_importing_the_library_imports_no_compiler() -> None:
    program = (
        "import sys, torch, fastmax; from fastmax import backends; backends.load('batched')\n"
        "x = torch.randn(1, 1, 4, 4); fastmax.fastmax_attention(x, x, x, backend='batched')\n"
        "print([name for name in ('torch._inductor', 'triton', 'torch.nn.attention.flex_attention') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
