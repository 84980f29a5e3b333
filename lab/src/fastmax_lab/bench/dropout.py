"""`fastmax-lab bench dropout`: what each dropout mode costs, against the same call without."""

from collections.abc import Callable

import torch

from fastmax import fastmax_attention
from fastmax.backends import native
from fastmax.dropout import MODES
from fastmax_lab._progress import Progress
from fastmax_lab.bench.measure import interleave, seconds
from fastmax_lab.measurements import Recorder, slug
from fastmax_lab.report.table import mask, passes

TOKENS, HEADS, RATE = 4096, 8, 0.1
NONE = "none"


def run(record: Recorder, quick: bool) -> None:
    """Record order 2: the native backend with heads of 32 and 64, forward and with gradients, and the chunked one with 32."""
    cells = [("native", dim, backward) for dim in (32, 64) for backward in (False, True)] if native.levels() else []
    cells += [("chunked", 32, True)]
    with Progress(2 * len(cells)) as bar:
        for backend, head_dim, backward in cells:
            for is_causal in (False, True):
                bar.step(f"{backend}, D = {head_dim}, {mask(is_causal)}")
                rates = {NONE: 0.0} | dict.fromkeys(MODES, RATE)
                contestants = {x: _call(backend, head_dim, is_causal, backward, rates[x], x) for x in rates}
                timings = interleave(contestants, rounds=2 if quick else 7, yardstick=NONE)
                cell = {"backend": backend, "head_dim": head_dim, "is_causal": is_causal, "backward": backward}
                cell |= {"tokens": TOKENS, "heads": HEADS, "order": 2, "rate": RATE}
                name = slug(backend, f"d{head_dim}", mask(is_causal), passes(backward))
                record.add(name, cell, {"seconds": seconds(timings)})


def _call(backend: str, head_dim: int, is_causal: bool, backward: bool, rate: float, mode: str) -> Callable[[], object]:
    # (B, N, H, D) projections, transposed: what models pass
    shape = (1, TOKENS, HEADS, head_dim)
    q, k, v = (torch.randn(shape).transpose(1, 2).requires_grad_(backward) for _ in range(3))
    do = torch.randn(shape).transpose(1, 2)
    mode = "quadratic" if mode == NONE else mode

    def call() -> None:
        o = fastmax_attention(q, k, v, None, rate, is_causal, dropout_mode=mode, backend=backend)
        if backward:
            torch.autograd.grad(o, (q, k, v), do)

    return call
