"""`fastmax bench dropout`: what each dropout mode costs, against the same backend without."""

from collections.abc import Callable
from typing import Any

import torch

from fastmax import fastmax_attention
from fastmax._progress import Progress
from fastmax.bench.measure import interleave, seconds, write
from fastmax.dropout import MODES

SHAPE = (1, 8, 4096, 32)


def run(out: str | None, quick: bool) -> dict[str, Any]:
    """Forward + backward, order 2, rate 0.1, on the chunked backend."""
    measured: dict[str, Any] = {"shape": SHAPE, "order": 2, "rate": 0.1, "cells": []}
    with Progress(2) as bar:
        for is_causal in (False, True):
            bar.step("causal" if is_causal else "unmasked")
            contestants = {mode: _call(is_causal, 0.1, mode) for mode in MODES} | {
                "none": _call(is_causal, 0.0, "quadratic")
            }
            timings = interleave(contestants, rounds=2 if quick else 5)
            measured["cells"].append({"is_causal": is_causal, "seconds": seconds(timings)})
    write(out, measured)
    return measured


def _call(is_causal: bool, rate: float, mode: str) -> Callable[[], object]:
    q, k, v = (torch.randn(SHAPE).requires_grad_() for _ in range(3))

    def call() -> None:
        o = fastmax_attention(q, k, v, None, rate, is_causal, dropout_mode=mode, backend="chunked")
        torch.autograd.grad(o.sum(), (q, k, v))

    return call
