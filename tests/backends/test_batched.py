"""The batched backend: sums of half precision about a centre, spans, the budget, and what a launch costs."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fastmax import decay
from fastmax.backends import batched, chunked, resolve
from fastmax.backends.batched import work
from fastmax.backends.batched.slots import running_sums
from fastmax.call import Options, OutputGrads
from fastmax.decay import wide
from fastmax.plan import Plan
from tests.backends.conformance import Variant, check, make
from tests.backends.precision import DIM, errors
from tests.support import randn

HERE = Variant("batched", None, "cpu", "factorized")
SMALL_MULTIPLE = 4
"""The allowed error over that of the dense form, which comes from rounding the same inputs."""

ROUNDING = 2.0**-9
"""The rounding of one number in bf16, relative to the norm: for gradients that are zero."""


@pytest.mark.parametrize("kind", ["independent", "cluster", "identical", "two clusters", "few"])
@pytest.mark.parametrize(("scale", "is_causal"), [(1.0, True), (1.0, False), (DIM**-0.5, True)])
def test_bf16_is_about_as_exact_as_the_dense_form(kind: str, scale: float, is_causal: bool) -> None:
    """A weight of 0.5 is a sum of terms of order D^2 / 2, which bf16 cannot hold: so sums are about the mean of the keys."""
    dense = errors(HERE, "dense", kind, is_causal, scale)
    for name, error in errors(HERE, "factorized", kind, is_causal, scale).items():
        assert error <= SMALL_MULTIPLE * dense[name] + ROUNDING, (name, error, dense[name])


class NoFloat64(TorchDispatchMode):
    """An error where an operation returns fp64."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # a product that is added in place to sums of another dtype has no kernel on the meta device
        out = kwargs["out"] if func is torch.ops.aten.baddbmm.dtype_out else func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            assert not isinstance(x, Tensor) or x.dtype != torch.float64, func
        return out


@pytest.mark.parametrize("form", ["dense", "factorized"])
@pytest.mark.parametrize("packed", [False, True])
def test_nothing_is_fp64_on_mps(monkeypatch: pytest.MonkeyPatch, form: str, packed: bool) -> None:
    """MPS has none. Meta tensors run through both passes, with the dtype of sums of decays that it has there."""
    assert wide(torch.device("mps")) == torch.float32
    for module in (decay, work):
        monkeypatch.setattr(module, "wide", lambda _: torch.float32)
    with NoFloat64():
        q, k, v = (torch.empty(1, heads, 300, 16, device="meta", dtype=torch.bfloat16) for heads in (4, 2, 2))
        more: dict[str, Any] = {
            "log_decay": torch.empty(1, 2, 300, device="meta"),
            "head_scale": torch.empty(4, device="meta"),
        }
        if packed:
            cu = torch.empty(4, dtype=torch.int32, device="meta")
            more |= {"cu_seqlens_q": cu, "cu_seqlens_k": cu}
        else:
            more["key_mask"] = torch.empty(1, 1, 300, dtype=torch.bool, device="meta")
        call = make(q, k, v, is_causal=True, options=Options(scale=1.0, out_dtype=torch.float32), **more)
        plan = Plan(form, chunk=64)
        o, g, _ = batched.forward(call, plan)
        found = batched.backward(call, plan, o, g, OutputGrads(o, g, None))
        assert {x.device.type for x in (o, g, *found[:4])} == {"meta"}


def test_the_factorized_form_in_spans_is_the_same() -> None:
    """However small the budget: the sums are handed on, over slots, batch elements and heads."""
    torch.manual_seed(5)
    q, k, v = randn(2, 4, 130, 8), randn(2, 2, 130, 8), randn(2, 2, 130, 4)
    cu = torch.tensor([0, 3, 3, 90, 130])
    fading = -torch.rand(2, 2, 130, dtype=torch.float64) / 20
    for call in (
        make(q, k, v, is_causal=True, log_decay=fading, return_state=True),
        make(q, k, v, head_scale=torch.rand(4, dtype=torch.float64) + 0.5),
        make(q[:1], k[:1], v[:1], is_causal=True, cu_seqlens_q=cu, cu_seqlens_k=cu, log_decay=fading[:1]),
        make(q[:1], k[:1], v[:1], cu_seqlens_q=cu, cu_seqlens_k=cu, return_state=True),
    ):
        for budget in (1, 100_000, 1 << 30):
            check(HERE, call, None, Plan("factorized", chunk=16, feature_budget=budget))


def test_many_slots_are_summed_in_groups() -> None:
    torch.manual_seed(6)
    terms, logs = randn(1, 2, 70 * 64, 3, 2), -torch.rand(1, 2, 70 * 64, dtype=torch.float64)
    logs[..., ::97] = -torch.inf
    expected, total = [], torch.zeros(1, 2, 3, 2, dtype=torch.float64)
    for i in range(terms.shape[2]):
        total = logs[:, :, i].exp()[..., None, None] * total + terms[:, :, i]
        expected.append(total)
    torch.testing.assert_close(running_sums(terms, logs), torch.stack(expected, 2))


def test_auto_takes_it_on_accelerators_alone() -> None:
    x = torch.empty(1, 1, 8, 4)
    assert "accelerators" in str(batched.unsupported(make(x, x, x)))
    assert batched.unsupported(make(*[x.to("meta")] * 3)) is None
    assert batched.unsupported(make(x, x, x, backend="batched")) is None
    assert resolve(make(*[x.to("meta")] * 3)) is batched
    long = torch.empty(1, 1, 100_000, 4, device="meta")
    assert resolve(make(long, long, long, order=3)) is chunked
    assert resolve(make(*[x.to("meta")] * 3, order=3, return_state=True)) is chunked
