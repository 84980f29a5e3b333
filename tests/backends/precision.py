"""Errors of bf16 against fp64 where keys are alike or few."""

import torch
from torch import Tensor

from fastmax.call import OutputGrads
from fastmax.plan import Plan
from tests.backends.conformance import Variant, defined, make, run

DIM, TOKENS, CHUNK = 64, 160, 64
SPREADS = {"independent": 1.0, "cluster": 0.05, "identical": 0.0, "two clusters": 0.1, "few": 1.0}
"""Spreads of keys about the centre of their cluster; independent ones have none."""


def keys(kind: str, tokens: int) -> Tensor:
    """Return keys that are independent, in one cluster, all the same, or in two clusters."""
    centres = torch.randn(2, DIM) * (kind not in ("independent", "few"))
    of = torch.randint(2 if kind == "two clusters" else 1, (tokens,))
    return (centres[of] + SPREADS[kind] * torch.randn(tokens, DIM))[None, None].bfloat16()


def errors(variant: Variant, form: str, kind: str, is_causal: bool, scale: float) -> dict[str, float]:
    """Return for each result the norm of its error, divided by the norm of the result if that is above 1."""
    torch.manual_seed(3)
    queries = 3 if kind == "few" and is_causal else TOKENS
    q, k = torch.randn(1, 1, queries, DIM).bfloat16(), keys(kind, 3 if kind == "few" else TOKENS)
    v, do = (torch.randn(k.shape) + 1).bfloat16(), torch.randn(q.shape).bfloat16()
    call, grads = make(q, k, v, is_causal=is_causal, scale=scale), OutputGrads(do, None, None)
    plan = Plan(form, chunk=2 if kind == "few" else CHUNK)
    found, exact = run(variant, call, grads, plan), defined(call, grads, exact=True)
    return {
        name: ((found[name].double() - exact[name]).norm() / exact[name].norm().clamp(min=1)).item()
        for name in ("o", "g", "d_q", "d_k", "d_v")
    }
