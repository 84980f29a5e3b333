"""In bf16 the factorized form of the Triton backend is about as exact as its dense form, also where keys are alike or few.

There a weight of 0.5 is a sum of terms of order D^2 / 2, which bf16 cannot hold: so the sums are about the mean of the keys.
"""

import pytest
import torch
from torch import Tensor

from fastmax.call import OutputGrads
from fastmax.plan import Plan
from tests.backends.conformance import Variant, defined, make, run
from tests.backends.interpreter import MISSING

pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

HERE = Variant("triton", "interpreted", "cpu", "factorized")
DIM, TOKENS = 32, 96
SMALL_MULTIPLE = 4
"""Of the dense form's error, which comes from rounding the same inputs."""

ROUNDING = 2.0**-7
"""That of a result in bf16, relative to its largest number."""


def keys(kind: str) -> Tensor:
    """Independent; in one cluster; all the same; in two clusters."""
    noise = {"independent": 1.0, "cluster": 0.05, "identical": 0.0, "two clusters": 0.1}[kind]
    centres = torch.randn(2, DIM) * (kind != "independent")
    of = torch.randint(2 if kind == "two clusters" else 1, (TOKENS,))
    return (centres[of] + noise * torch.randn(TOKENS, DIM))[None, None].bfloat16()


def errors(form: str, kind: str, scale: float, is_causal: bool, constant: bool) -> dict[str, tuple[float, float]]:
    """The largest error of each result, and the largest number of the result."""
    torch.manual_seed(3)
    q, k, do = torch.randn(1, 1, TOKENS, DIM).bfloat16(), keys(kind), torch.randn(1, 1, TOKENS, DIM).bfloat16()
    v = torch.full_like(k, 1.7) if constant else (torch.randn(1, 1, TOKENS, DIM) + 1).bfloat16()
    call, grads = make(q, k, v, is_causal=is_causal, scale=scale), OutputGrads(do, None, None)
    found = run(HERE, call, grads, Plan(form, chunk=32, dense_tile=32))
    exact = defined(call, grads, exact=True)
    names = ("o", "g", "d_q", "d_k", "d_v")
    return {
        name: ((found[name].double() - exact[name]).abs().max().item(), exact[name].abs().max().item())
        for name in names
    }


@pytest.mark.parametrize(
    ("kind", "constant"), [("independent", False), ("cluster", False), ("identical", False), ("two clusters", True)]
)
@pytest.mark.parametrize(("scale", "is_causal"), [(1.0, True), (1.0, False), (DIM**-0.5, True)])
def test_no_worse_than_the_dense_form(kind: str, constant: bool, scale: float, is_causal: bool) -> None:
    dense = errors("dense", kind, scale, is_causal, constant)
    for name, (error, size) in errors("factorized", kind, scale, is_causal, constant).items():
        assert error <= SMALL_MULTIPLE * dense[name][0] + ROUNDING * size, (name, error, dense[name][0], size)


def test_a_single_key_in_each_packed_sequence() -> None:
    """Its value comes out, whatever the weight."""
    torch.manual_seed(3)
    q, k, v = (torch.randn(1, 1, 6, DIM).bfloat16() for _ in range(3))
    ends = torch.arange(7, dtype=torch.int32)
    call = make(q, k, v, scale=1.0, cu_seqlens_q=ends, cu_seqlens_k=ends, return_state=True)
    found = run(HERE, call, OutputGrads(torch.randn_like(v), None, None), Plan("factorized", chunk=16, dense_tile=16))
    torch.testing.assert_close(found["o"], v, rtol=2**-7, atol=0)
