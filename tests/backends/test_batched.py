"""The batched backend: sums of half precision about a centre, spans, the budget, and what a launch costs."""

import pytest
import torch
from torch import Tensor

from fastmax.call import OutputGrads
from fastmax.plan import Plan
from tests.backends.conformance import Variant, defined, make, run

HERE = Variant("batched", None, "cpu", "factorized")
DIM, TOKENS, CHUNK = 64, 160, 64
SMALL_MULTIPLE = 4
"""Of the dense form's error, which comes from rounding the same inputs."""

ROUNDING = 2.0**-9
"""That of one number in bf16, relative to the norm: for gradients that are zero."""


def keys(kind: str, tokens: int) -> Tensor:
    """Independent; in one cluster; all the same; in two clusters."""
    noise = {"independent": 1.0, "cluster": 0.05, "identical": 0.0, "two clusters": 0.1, "few": 1.0}[kind]
    centres = torch.randn(2, DIM) * (kind not in ("independent", "few"))
    of = torch.randint(2 if kind == "two clusters" else 1, (tokens,))
    return (centres[of] + noise * torch.randn(tokens, DIM))[None, None].bfloat16()


def errors(form: str, kind: str, is_causal: bool, scale: float) -> dict[str, float]:
    """Of each result, the norm of its error over its own; over that of the values or output gradients where it is zero."""
    torch.manual_seed(3)
    queries = 3 if kind == "few" and is_causal else TOKENS
    q, k = torch.randn(1, 1, queries, DIM).bfloat16(), keys(kind, 3 if kind == "few" else TOKENS)
    v, do = (torch.randn(k.shape) + 1).bfloat16(), torch.randn(q.shape).bfloat16()
    call, grads = make(q, k, v, is_causal=is_causal, scale=scale), OutputGrads(do, None, None)
    plan = Plan(form, chunk=2 if kind == "few" else CHUNK)
    found, exact = run(HERE, call, grads, plan), defined(call, grads, exact=True)
    return {
        name: ((found[name].double() - exact[name]).norm() / exact[name].norm().clamp(min=1)).item()
        for name in ("o", "g", "d_q", "d_k", "d_v")
    }


@pytest.mark.parametrize("kind", ["independent", "cluster", "identical", "two clusters", "few"])
@pytest.mark.parametrize(("scale", "is_causal"), [(1.0, True), (1.0, False), (DIM**-0.5, True)])
def test_bf16_is_about_as_exact_as_the_dense_form(kind: str, scale: float, is_causal: bool) -> None:
    """A weight of 0.5 is a sum of terms of order D^2 / 2, which bf16 cannot hold: so sums are about the mean of the keys."""
    dense = errors("dense", kind, is_causal, scale)
    for name, error in errors("factorized", kind, is_causal, scale).items():
        assert error <= SMALL_MULTIPLE * dense[name] + ROUNDING, (name, error, dense[name])
