"""Measure the errors of bf16 against fp64 where keys are alike, of the backends and of kernels that do not exist.

python -m tools.bf16_errors            # writes lab/results/bf16-errors.jsonl
"""

from itertools import product
from pathlib import Path

import torch
from tests.backends.conformance import Variant
from tests.backends.precision import CHUNK, DIM, SPREADS, TOKENS, errors, keys
from torch import Tensor

from fastmax.core import similarity, standardize
from fastmax.features import phi
from fastmax_lab.measurements import Recorder

OUT = Path(__file__).parent.parent / "lab" / "results" / "bf16-errors.jsonl"
BACKENDS = {
    "batched": Variant("batched", None, "cpu", "factorized"),
    "triton": Variant("triton", "interpreted", "cpu", "factorized"),
}
RULES = ((1.0, False), (1.0, True), (DIM**-0.5, True))
"""Scales, and whether a call is causal."""


def rounded(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return two numbers of bf16 whose sum is nearly x."""
    return rounded(x), rounded(x - rounded(x))


def product_of_halves(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b in three products of bf16 numbers, with sums in fp32."""
    (a_high, a_low), (b_high, b_low) = halves(a), halves(b)
    return a_high @ b_high + a_high @ b_low + a_low @ b_high


def emulated(kind: str) -> dict[str, float]:
    """Return the errors of unmasked outputs over the largest output, with products of bf16 and sums in fp32."""
    torch.manual_seed(3)
    q, k = torch.randn(TOKENS, DIM), keys(kind, TOKENS)[0, 0].float()
    u = torch.cat([rounded(torch.randn(TOKENS, DIM) + 1), torch.ones(TOKENS, 1)], 1)
    exact = similarity(standardize(q.double()) @ standardize(k.double()).T, 2) @ u.double()
    q, k = standardize(q), standardize(k)
    fq, fk = phi(q.T, 2).T, phi(k.T, 2)  # (tokens, features) and (features, tokens)
    sums = {
        "dense": rounded(similarity(rounded(q) @ rounded(k).T, 2)) @ u,
        "factorized": rounded(fq) @ rounded(rounded(fk) @ u),
        "factorized, two parts": product_of_halves(fq, product_of_halves(fk, u)),
    }
    o = exact[:, :-1] / exact[:, -1:]
    return {name: ((s[:, :-1] / s[:, -1:] - o).abs().max() / o.abs().max()).item() for name, s in sums.items()}


def main() -> None:
    OUT.unlink(missing_ok=True)
    record = Recorder("bf16-errors", OUT)
    for kind in ("independent", "cluster", "identical"):
        record.add(f"emulated, {kind}", {"keys": kind, "tokens": TOKENS, "head_dim": DIM, "scale": 1.0}, emulated(kind))
    for (name, variant), kind, (scale, is_causal) in product(BACKENDS.items(), SPREADS, RULES):
        settings = {"backend": name, "keys": kind, "scale": scale, "is_causal": is_causal, "tokens": TOKENS}
        found = {form: errors(variant, form, kind, is_causal, scale) for form in ("factorized", "dense")}
        of = f"{name}, {kind}, {'causal' if is_causal else 'unmasked'}, scale {scale:.3g}"
        record.add(of, settings | {"head_dim": DIM, "chunk": CHUNK, "values_mean": 1.0}, found)


if __name__ == "__main__":
    main()
