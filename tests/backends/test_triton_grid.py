"""The Triton backend in Triton's interpreter: every combination of features, and every size of heads.

`make test-triton` runs it. Each row of CASES is a call; between them each pair of features, orders, masks and dtypes stands
in some row.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch

from fastmax.call import Call, OutputGrads
from fastmax.plan import Plan
from tests.backends.conformance import Variant, check, defined, make, run
from tests.backends.interpreter import MISSING
from tests.support import assert_within_budget, randn

pytestmark = [pytest.mark.skipif(MISSING is not None, reason=str(MISSING)), pytest.mark.interpreted]

HERE = Variant("triton", "interpreted", "cpu", "factorized")
DIMS = [16, 20, 32, 64, 128]
TOKENS = 70
CUT = Plan("factorized", chunk=32, dense_tile=32)
HALF, BRAIN, SINGLE = torch.float16, torch.bfloat16, torch.float32


class Case(NamedTuple):
    order: int
    is_causal: bool
    dtype: torch.dtype
    normalize: str
    features: str

    def __str__(self) -> str:
        mask = "causal" if self.is_causal else "unmasked"
        return f"{self.order}-{mask}-{str(self.dtype).removeprefix('torch.')}-{self.normalize}-{self.features}"


CASES = [
    Case(2, True, SINGLE, "standardize", "groups padding state scale decay"),
    Case(2, True, BRAIN, "none", "packed state decay"),
    Case(2, True, HALF, "standardize", "padding scale decay"),
    Case(2, True, HALF, "rms", "packed groups state"),
    Case(2, False, SINGLE, "none", "packed padding scale"),
    Case(2, False, BRAIN, "rms", "groups padding state scale"),
    Case(2, False, HALF, "none", "packed groups state"),
    Case(1, True, SINGLE, "none", "packed state decay"),
    Case(1, True, BRAIN, "rms", "groups state decay"),
    Case(1, True, HALF, "rms", "packed groups padding scale decay"),
    Case(1, False, SINGLE, "rms", "groups padding"),
    Case(1, False, BRAIN, "standardize", "packed scale"),
    Case(1, False, HALF, "standardize", "state"),
]


def call_of(case: Case, dim: int, value_dim: int) -> Call:
    """Two sequences, or packed ones of which one is empty and one has a single key; NaN under the mask."""
    has = case.features.split()
    packed = "packed" in has
    batch, groups, wide = 1 if packed else 2, 2 if "groups" in has else 1, torch.float32
    q, k, v = (
        randn(batch, heads, TOKENS, n, dtype=case.dtype) for heads, n in ((groups, dim), (1, dim), (1, value_dim))
    )
    if case.normalize == "none":  # of unit size, as s is for tokens that are normalized
        q, k = (x / x.float().norm(dim=-1, keepdim=True).to(x.dtype) * dim**0.5 for x in (q, k))
    more: dict[str, Any] = {}
    keep = torch.ones(batch, 1, TOKENS, dtype=torch.bool)
    if "padding" in has:
        keep = torch.rand(batch, 1, TOKENS) < 0.7
        keep[..., :3] = keep[..., 32:64] = False
        more["key_mask"] = keep
        k, v = (torch.where(keep.unsqueeze(-1), x, torch.nan) for x in (k, v))
    if "decay" in has:
        more["log_decay"] = torch.where(keep, -torch.rand(batch, 1, TOKENS) / 5, 0)
    if "scale" in has:
        more["head_scale"] = torch.rand(groups) + 0.5
    sequences = batch
    if packed:
        ends = torch.tensor([0, 0, 45, 46, TOKENS], dtype=torch.int32)
        sequences = 4
        more |= {"cu_seqlens_q": ends, "cu_seqlens_k": ends}
    if "state" in has:
        older = [randn(sequences, 1, n, size, dtype=wide) for n, size in ((0, dim), (40, dim), (40, value_dim))]
        before = make(*older, order=case.order, return_state=True)
        more |= {
            "state_in": defined(before, OutputGrads(None, None, None), exact=True)["state"].float(),
            "return_state": True,
        }
    return make(q, k, v, order=case.order, is_causal=case.is_causal, normalize=case.normalize, **more)


def every_combination(form: str) -> Iterator[Case]:
    """Yield all combinations that kernels with products are compiled for. Normalization and scale take turns."""
    dense = form == "dense"
    number = 0
    for order, is_causal, dtype in product((1, 2, 3, 4) if dense else (1, 2), (True, False), (SINGLE, BRAIN, HALF)):
        flags = ["packed", "groups", "padding"]
        if is_causal:
            flags.append("decay")
        if not dense or (is_causal and order < 3):  # an unmasked state is factorized, and of order 3 there is none
            flags.append("state")
        for chosen in product((False, True), repeat=len(flags)):
            features = [flag for flag, given in zip(flags, chosen, strict=True) if given]
            features += ["scale"] if number % 5 < 3 else []
            yield Case(order, is_causal, dtype, ("standardize", "rms", "none")[number % 3], " ".join(features))
            number += 1


@pytest.mark.parametrize("case", list(every_combination("factorized")), ids=str)
def test_every_combination(case: Case) -> None:
    check(HERE, call_of(case, 16, 16), None, CUT)


@pytest.mark.parametrize("case", list(every_combination("dense")), ids=str)
def test_every_combination_of_the_dense_form(case: Case) -> None:
    check(HERE, call_of(case, 16, 16), None, CUT._replace(form="dense"))


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dim", DIMS)
def test_factorized(dim: int, case: Case) -> None:
    check(HERE, call_of(case, dim, dim), None, CUT)


@pytest.mark.parametrize(("dim", "value_dim"), [(16, 128), (128, 16), (32, 64), (20, 12)])
def test_values_of_another_size(dim: int, value_dim: int) -> None:
    check(HERE, call_of(Case(2, True, BRAIN, "standardize", "groups scale decay"), dim, value_dim), None, CUT)


@pytest.mark.parametrize(
    "case",
    [
        Case(1, True, BRAIN, "standardize", "packed groups scale decay"),
        Case(2, False, HALF, "rms", "groups padding scale"),
        Case(3, True, SINGLE, "standardize", "packed padding"),
        Case(4, False, BRAIN, "standardize", "packed groups scale"),
    ],
    ids=str,
)
@pytest.mark.parametrize("dim", DIMS)
def test_dense(dim: int, case: Case) -> None:
    check(HERE, call_of(case, dim, dim), None, CUT._replace(form="dense"))


@pytest.mark.parametrize("dtype", [SINGLE, BRAIN])
@pytest.mark.parametrize("dim", DIMS)
def test_two_halves_are_the_whole(dim: int, dtype: torch.dtype) -> None:
    """The state of the first half is where the second begins: outputs and states are those of one call."""
    q, k, v = (randn(1, 1, TOKENS, dim, dtype=dtype) for _ in range(3))
    nothing, options = OutputGrads(None, None, None), {"is_causal": True, "return_state": True}
    whole = make(q, k, v, **options)
    exact, same = (defined(whole, nothing, exact=x) for x in (True, False))
    first, second = (make(*(x[:, :, part] for x in (q, k, v)), **options) for part in (slice(37), slice(37, None)))
    before = run(HERE, first, nothing, CUT)
    second.state_in = before["state"]
    after = run(HERE, second, nothing, CUT)
    found = {name: torch.cat([before[name], after[name]], 2) for name in ("o", "g")} | {"state": after["state"]}
    for name, x in found.items():
        assert_within_budget(x, exact[name], same[name], HERE.precision(whole))
