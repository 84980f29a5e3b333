"""The interpreter that the tests run in gives the bits of Triton's own, only sooner."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fastmax import ops
from fastmax.features import feature_count
from tests.backends.conformance import output_grads
from tests.backends.interpreter import MISSING, Interpreted, interpreted
from tests.backends.test_triton_grid import BRAIN, CUT, HALF, SINGLE, Case, call_of
from tests.support import randn

pytestmark = [pytest.mark.skipif(MISSING is not None, reason=str(MISSING)), pytest.mark.interpreted]


@pytest.fixture(scope="module")
def slow() -> Iterator[Any]:
    found = Interpreted(quick=False)
    yield found
    found.close()


@pytest.mark.parametrize(
    "case",
    [
        Case(2, True, SINGLE, "standardize", "groups padding state scale decay"),
        Case(2, True, BRAIN, "rms", "packed groups padding state scale decay"),
        Case(2, False, HALF, "none", "packed state"),
        Case(1, True, BRAIN, "standardize", "padding scale decay"),
        Case(3, False, SINGLE, "standardize", "padding scale"),
    ],
    ids=str,
)
def test_the_same_bits_as_without_shortcuts(slow: Any, case: Case) -> None:
    call = call_of(case, 20, 12)
    grads, results = output_grads(call), []
    for backend in (slow, interpreted()):
        o, g, state = backend.forward(call, CUT)
        results.append([o, g, state, *ops.gradients(backend, CUT, call, o, g, state, *grads)])
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))
    assert not any(x.isnan().any() for x in results[0])


def test_a_step_of_decoding_too(slow: Any) -> None:
    q, k, v = randn(1, 2, 1, 9, dtype=SINGLE), randn(1, 1, 1, 9, dtype=SINGLE), randn(1, 1, 1, 5, dtype=SINGLE)
    held = [randn(1, 1, feature_count(9, 2), 6).abs(), randn(1, 1, 6, 9), randn(1, 1, 6, 6), -torch.rand(1, 1, 6)]
    decay, results = -torch.rand(1, 1, 1), []
    for backend in (slow, interpreted()):
        buffers = [x.to(SINGLE, copy=True) for x in held]
        step = backend.prepare_step(q, k, v, *buffers, None, decay, order=2, scale=1 / 9, normalize="rms")
        results.append([step(q, k, v, torch.full((2,), 0.5), None, decay, 5, 2), *buffers])
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))
