"""`fastmax-lab bench decay`: what forgetting costs, by how far back heads see: both forms, both directions, decoding."""

from collections.abc import Callable

import torch
from torch import Tensor

from fastmax import fastmax_attention
from fastmax.state import FastmaxState
from fastmax_lab._progress import Progress
from fastmax_lab.bench.measure import interleave, seconds
from fastmax_lab.measurements import Recorder, slug
from fastmax_lab.report.table import mask, passes

CELLS = [
    *((tokens, 32, 8) for tokens in (256, 1024, 4096, 16384)),
    *((tokens, 64, 8) for tokens in (512, 4096, 16384)),
    *((tokens, 128, 4) for tokens in (1024, 4096)),
]
"""Tokens, head dimension and heads. Without a decay the longest are factorized if causal, but for those of 128 channels."""
QUICK_CELLS = [(512, 32, 8), (4096, 64, 8)]
NONE = "none"
MEANS = (0.0, 0.001, 0.01, 0.05, 0.5, 5.0)
REACHES = {"gated": (2.0**2, 2.0**12), "trained": (1.0, 20.0)}
"""Heads with decays of -1 / reach on average, from one reach to the other: as layers start, and as they end."""
STEP = (8, 64)
DECODING = "decoding"


def run(record: Recorder, quick: bool) -> None:
    """Record order 2, fp32: causal and in both directions, forward and forward + backward; then a step of decoding."""
    cells = QUICK_CELLS if quick else CELLS
    with Progress(4 * len(cells) + 1) as bar:
        for tokens, head_dim, heads in cells:
            for is_causal in (True, False):
                for backward in (False, True):
                    bar.step(f"N = {tokens:,}, D = {head_dim}, {mask(is_causal)}, {passes(backward)}")
                    decays = {NONE: None} | {str(mean): _uniform(tokens, heads, mean) for mean in MEANS}
                    decays |= {name: _reaching(tokens, heads, *ends) for name, ends in REACHES.items()}
                    calls = {name: _call(tokens, head_dim, x, is_causal, backward, heads) for name, x in decays.items()}
                    timings = interleave(calls, rounds=3 if quick else 7, slow=(0.1, 3), yardstick=NONE)
                    cell = {"tokens": tokens, "head_dim": head_dim, "heads": heads, "order": 2}
                    cell |= {"is_causal": is_causal, "backward": backward}
                    name = slug(tokens, f"d{head_dim}", mask(is_causal), passes(backward))
                    record.add(name, cell, {"seconds": seconds(timings)})
        bar.step("decoding")
        with torch.inference_mode():
            steps = {name: _step(name != NONE) for name in (NONE, "0.05")}
            timings = interleave(steps, rounds=6 if quick else 22, yardstick=NONE)
        record.add(DECODING, {"heads": STEP[0], "head_dim": STEP[1], "order": 2}, {"seconds": seconds(timings)})


def _uniform(tokens: int, heads: int, mean: float) -> Tensor:
    return -2 * mean * torch.rand(1, heads, tokens)


def _reaching(tokens: int, heads: int, nearest: float, farthest: float) -> Tensor:
    """Return decays of heads whose reaches, in tokens, are spread evenly on a logarithmic scale."""
    reaches = nearest * (farthest / nearest) ** torch.linspace(0, 1, heads)
    return _uniform(tokens, heads, 1.0) / reaches[:, None]


def _call(
    tokens: int, head_dim: int, log_decay: Tensor | None, is_causal: bool, backward: bool, heads: int
) -> Callable[[], object]:
    q, k, v, do = (torch.randn(1, tokens, heads, head_dim).transpose(1, 2) for _ in range(4))
    leaves = [x.requires_grad_(backward) for x in (q, k, v, log_decay) if x is not None]

    def call() -> None:
        o = fastmax_attention(q, k, v, is_causal=is_causal, log_decay=log_decay)
        if backward:
            torch.autograd.grad(o, leaves, do)

    return call


def _step(decays: bool) -> Callable[[], object]:
    heads, head_dim = STEP
    state = FastmaxState.empty(1, heads, head_dim, order=2, scale=1.0, normalize=True)
    k, v = (torch.randn(1, heads, 4096, head_dim) for _ in range(2))
    log_decay = _uniform(4096, heads, 0.05) if decays else None
    state.update(k, v, log_decay=log_decay)
    q, new_k, new_v = (torch.randn(1, heads, 1, head_dim) for _ in range(3))
    new_decay = None if log_decay is None else log_decay[:, :, :1]
    return lambda: state.step(q, new_k, new_v, log_decay=new_decay)
