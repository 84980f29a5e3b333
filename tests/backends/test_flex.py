"""The dense form by FlexAttention: what it computes, without a compiler, on the CPU. It has no backward pass there."""

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxOutput, create_block_mask

from fastmax import _torch_private, api, fastmax_attention, ops
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
    groups = q.shape[1] // k.shape[1]
    assert enable_gqa or groups == 1
    k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    index = [
        torch.arange(n).view([-1 if i == d else 1 for i in range(4)]) for d, n in enumerate((*q.shape[:3], k.shape[2]))
    ]
    scores = score_mod(q @ k.mT * scale, *index)
    if block_mask is not None:
        scores = scores.masked_fill(~block_mask.mask_mod(*index), -torch.inf)
    seen = (scores > -torch.inf).any(-1, keepdim=True) | scores.isnan().any(-1, keepdim=True)
    weights = torch.where(seen, scores, 0).softmax(-1) * seen  # zeros for a query that sees no key
    return weights @ v, AuxOutput(lse=scores.logsumexp(-1) if return_aux.lse else None)


@contextmanager
def as_flex_attention(function: Callable[..., Any]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.nn.attention.flex_attention.flex_attention", function)
        yield


def run(call: Call, function: Callable[..., Any], grads: OutputGrads | None = None) -> dict[str, Tensor]:
    """o, g and the gradients by the backend, with a function that takes the part of FlexAttention."""
    with as_flex_attention(function):
        o, g, _ = flex.forward(call, flex.PLAIN)
        if grads is None:
            return {"o": o, "g": g}
        out = flex.backward(call, grads, flex.PLAIN)
    return {"o": o, "g": g} | {f"d_{name}": x for name, x in out._asdict().items()}


@pytest.mark.parametrize("call", list(calls()), ids=lambda call: name_of(call))
def test_flex_attention_computes_fastmax(call: Call) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    exact = defined(call, output_grads(call), exact=True)
    for name, x in run(call, flex_attention).items():
        torch.testing.assert_close(x, exact[name], rtol=1e-6, atol=1e-6)  # its logarithm of g is fp32
    for name, x in run(call, by_formula).items():
        torch.testing.assert_close(x, exact[name], rtol=1e-12, atol=1e-12)


def fading_ones() -> Iterator[Call]:
    return (call for call in calls() if call.log_decay is not None)


def others() -> Iterator[Call]:
    """Calls whose gradients FlexAttention computes: without decays, some with padding."""
    for call in calls():
        if call.log_decay is None:
            yield call
            mask = torch.rand(2, 2, 50) < 0.7
            mask[:, :, :3] = False  # the first queries of a causal call see no key
            yield replace(call, key_mask=mask, options=call.options._replace(is_causal=True))


def name_of(call: Call) -> str:
    return f"order {call.options.order}, {'causal' if call.options.is_causal else 'unmasked'}"


@pytest.mark.parametrize("call", list(others()), ids=name_of)
@pytest.mark.parametrize("with_g", [False, True])
def test_gradients_are_those_of_the_formula(call: Call, with_g: bool) -> None:
    grads = output_grads(call)
    grads = grads if with_g else grads._replace(g=None)
    exact = defined(call, grads, exact=True)
    for name, x in run(call, by_formula, grads).items():
        torch.testing.assert_close(x, exact[name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("call", list(fading_ones()), ids=name_of)
def test_with_decays_the_products_of_the_backend_compute_the_gradients(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flex, "functions_for", lambda _: flex.PLAIN)
    monkeypatch.setattr(flex, "backward", None)
    grads = output_grads(call)._replace(state=None)
    exact = defined(call, grads, exact=True)
    with as_flex_attention(by_formula):
        o, g, _ = batched.forward(call, Plan("dense"))
    out = batched.backward(call, Plan("dense"), o, g, grads)
    assert batched.differentiable(call) is None
    for name, x in out._asdict().items():
        if name == "log_decay":
            x = torch.where(call.log_decay > -100, x, 0)
        torch.testing.assert_close(x, exact[f"d_{name}"], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("call", list(others()), ids=name_of)
def test_autograd_follows_the_differentiable_form(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "functions_for", lambda _: flex.PLAIN)
    monkeypatch.setattr(batched, "takes_dense_form", lambda *_: True)
    leaves = {name: getattr(call, name).requires_grad_() for name in ("q", "k", "v")}
    grads = output_grads(call)._replace(g=None)
    exact = defined(call, grads, exact=True)
    with as_flex_attention(by_formula):
        o = batched.differentiable(call)
        assert o is not None
        found = torch.autograd.grad(o, [*leaves.values()], grads.o)
    torch.testing.assert_close(o.detach(), exact["o"], rtol=1e-9, atol=1e-9)
    for name, x in zip(leaves, found, strict=True):
        torch.testing.assert_close(x, exact[f"d_{name}"], rtol=1e-9, atol=1e-9)


def test_the_public_function_takes_the_differentiable_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors on the CPU stand in for those of a GPU. The op, which would run the forward pass again, is not called."""
    q, k, v = (randn(1, 2, 40, 16, dtype=torch.float32, grad=True) for _ in range(3))
    expected = fastmax_attention(q, k, v, is_causal=True)
    exact = torch.autograd.grad(expected.sum(), (q, k, v))
    monkeypatch.setattr(api, "find_watcher", lambda _: _torch_private.ON_DEVICE)
    monkeypatch.setattr(flex, "functions_for", lambda _: flex.PLAIN)
    monkeypatch.setattr(ops, "attend", None)
    with as_flex_attention(by_formula):
        o = fastmax_attention(q, k, v, is_causal=True, backend="batched")
        found = torch.autograd.grad(o.sum(), (q, k, v))
        with torch.autocast("cpu", torch.bfloat16):
            lowered = fastmax_attention(q, k, v, is_causal=True, backend="batched")
    torch.testing.assert_close(o, expected)
    torch.testing.assert_close(found, exact)
    assert lowered.dtype == torch.bfloat16
    torch.testing.assert_close(lowered, o.bfloat16(), rtol=0, atol=0)


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
    assert not o[..., 20:, :].isfinite().any()
    torch.testing.assert_close(o[..., :20, :], before[..., :20, :])
    k[..., 10, :] = content
    o = run(make(q, k, v, is_causal=True), by_formula)["o"]
    assert not o[..., 10:, :].isfinite().any()
    torch.testing.assert_close(o[..., :10, :], before[..., :10, :])


@pytest.mark.parametrize(
    ("queries", "keys"), [(1, 1), (127, 127), (128, 128), (129, 129), (400, 400), (300, 140), (140, 300), (512, 512)]
)
def test_the_mask_is_that_of_all_pairs(queries: int, keys: int) -> None:
    cpu = torch.device("cpu")
    found = flex._block_mask(queries, keys, cpu)
    expected = create_block_mask(flex._sees, None, None, queries, keys, device="cpu")
    assert found.shape == expected.shape
    assert torch.equal(found.to_dense(), expected.to_dense())
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        count, indices = name, name.replace("num_blocks", "indices")
        assert torch.equal(getattr(found, count), getattr(expected, count))
        listed = torch.arange(getattr(found, indices).shape[-1]) < getattr(found, count).unsqueeze(-1)
        assert torch.equal(getattr(found, indices)[listed], getattr(expected, indices)[listed])


@pytest.mark.slow  # the compiler
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # which the compiler asks for
def test_each_function_is_compiled_as_one_graph() -> None:
    """With scales, padding and decays. Meanwhile a compiler for the CPU stands in for that of a GPU."""
    options = {"backend": "aot_eager", "fullgraph": True}
    compiled = flex.Functions(
        *(_torch_private.compile_variants(one, flex.MAX_VARIANTS, **options) for one in flex.PLAIN)
    )
    for call in (*calls(), *others()):
        outputs = [flex.forward(call, functions)[:2] for functions in (compiled, flex.PLAIN)]
        torch.testing.assert_close(*outputs)
    grads = output_grads(call)
    with as_flex_attention(by_formula):
        found = [flex.backward(call, grads, functions) for functions in (compiled, flex.PLAIN)]
    torch.testing.assert_close(*found)


@pytest.mark.slow  # a process of its own
def test_each_tensor_is_read_and_written_once() -> None:
    """The kernels that the compiler writes for a GPU, which lab/src/fastmax_lab/bench/launches.py counts."""
    command = [sys.executable, "-m", "tests.backends.flex_kernels"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    bf16 = ["bfloat16"] * 3
    assert json.loads(done.stdout) == {
        "prepare": {"launches": 2, "stored": bf16},
        "gradients": {"launches": 3, "stored": bf16},
    }


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
