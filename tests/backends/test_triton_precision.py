"""In bf16 the factorized form of the Triton backend is about as exact as its dense form, also where keys are alike or few.

There a weight of 0.5 is a sum of terms of order D^2 / 2, which bf16 cannot hold: so the sums are about the mean of the keys.
"""

import pytest
import torch
from torch import Tensor

from fastmax.backends.triton.tiles import tiles_for
from fastmax.call import OutputGrads
from fastmax.plan import Plan
from tests.backends.conformance import Variant, defined, make, run
from tests.backends.interpreter import MISSING

pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

HERE = Variant("triton", "interpreted", "cpu", "factorized")
DIM, TOKENS = 32, 96
SMALL_MULTIPLE = 4
"""The allowed error over that of the dense form, which comes from rounding the same inputs."""

ROUNDING = 2.0**-7
"""The rounding of a result in bf16, relative to its largest number."""


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


def truncated_sums(phi: Tensor, u: Tensor, tokens: int) -> Tensor:
    """Sums of products over (pieces, tokens, ..) in an accumulator that rounds toward zero after each 16 of them."""
    total = torch.zeros(phi.shape[0], phi.shape[2], u.shape[2])
    for start in range(0, tokens, 16):
        here = slice(start, start + 16)
        exact = total.double() + phi[:, here].double().mT @ u[:, here].double()
        total = exact.float()
        away = total.double().abs() > exact.abs()
        total = torch.where(away, torch.nextafter(total, torch.zeros(())), total)
    return total


@pytest.mark.parametrize("dim", [16, 64, 128])
def test_sums_over_a_million_tokens_are_not_biased(dim: int) -> None:
    """Tensor cores truncate: each accumulator takes one chunk, and chunks are added in fp32."""
    tokens, chunk = 1 << 20, tiles_for("sm_80", dim, dim, 2, torch.bfloat16).chunk
    x = torch.randn(tokens, 4).bfloat16().float()
    phi, u = torch.cat([x * x, x], 1), torch.cat([torch.ones(tokens, 1), x[:, :1]], 1)
    exact = phi.double().T @ u.double()
    pieces = truncated_sums(phi.view(-1, chunk, 8), u.view(-1, chunk, 2), chunk)
    total = torch.zeros(8, 2)
    for piece in pieces:  # as `scan` adds them
        total += piece
    size = phi.double().norm(dim=0)[:, None] * u.double().norm(dim=0)
    assert ((total - exact).abs() / size).max() < 1e-5
    alone = truncated_sums(phi[None, : 1 << 16], u[None, : 1 << 16], 1 << 16)[0]
    before = phi[: 1 << 16].double().T @ u[: 1 << 16].double()
    assert ((alone - before).abs() / before.abs())[:4, 0].min() > 5e-5, "one accumulator, which this is to avoid"
