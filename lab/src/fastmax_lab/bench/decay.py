"""`fastmax-lab bench decay`: what forgetting costs, against the same call without: both forms, both directions, decoding."""

from collections.abc import Callable

import torch

from fastmax.api import fastmax_attention
from fastmax.state import FastmaxState
from fastmax_lab._progress import Progress
from fastmax_lab.bench.measure import interleave, seconds
from fastmax_lab.measurements import Recorder, slug
from fastmax_lab.report.table import passes

HEADS = 4
CELLS = [(16384, 32), (16384, 64), (256, 32), (512, 64)]
"""Tokens and head dimension: two of the factorized form, two of the dense one."""
STEP = (8, 64)
DECODING = "decoding"


def run(record: Recorder, quick: bool) -> None:
    """Record order 2, fp32, causal: forward, forward + backward; then a step of decoding."""
    rounds = 3 if quick else 11
    with Progress(2 * len(CELLS) + 1) as bar:
        for tokens, head_dim in CELLS:
            for backward in (False, True):
                bar.step(f"N = {tokens:,}, D = {head_dim}{', with gradients' if backward else ''}")
                calls = {name: _call(tokens, head_dim, name, backward) for name in ("without", "with", "both ways")}
                timings = interleave(calls, rounds=rounds, yardstick="without")
                cell = {"tokens": tokens, "head_dim": head_dim, "backward": backward, "heads": HEADS, "order": 2}
                record.add(slug(tokens, f"d{head_dim}", passes(backward)), cell, {"seconds": seconds(timings)})
        bar.step("decoding")
        with torch.inference_mode():
            steps = {name: _step(name == "with") for name in ("without", "with")}
            timings = interleave(steps, rounds=2 * rounds, yardstick="without")
        record.add(DECODING, {"heads": STEP[0], "head_dim": STEP[1], "order": 2}, {"seconds": seconds(timings)})


def _call(tokens: int, head_dim: int, name: str, backward: bool) -> Callable[[], object]:
    q, k, v, do = (torch.randn(1, tokens, HEADS, head_dim).transpose(1, 2) for _ in range(4))
    log_decay = None if name == "without" else -torch.rand(1, HEADS, tokens) / 8
    leaves = [x.requires_grad_(backward) for x in (q, k, v, log_decay) if x is not None]

    def call() -> None:
        o = fastmax_attention(q, k, v, is_causal=name != "both ways", log_decay=log_decay)
        if backward:
            torch.autograd.grad(o, leaves, do)

    return call


def _step(decays: bool) -> Callable[[], object]:
    heads, head_dim = STEP
    state = FastmaxState.empty(1, heads, head_dim, order=2, scale=1.0, normalize=True)
    k, v = (torch.randn(1, heads, 4096, head_dim) for _ in range(2))
    log_decay = -torch.rand(1, heads, 4096) / 8 if decays else None
    state.update(k, v, log_decay=log_decay)
    q, new_k, new_v = (torch.randn(1, heads, 1, head_dim) for _ in range(3))
    new_decay = None if log_decay is None else log_decay[:, :, :1]
    return lambda: state.step(q, new_k, new_v, log_decay=new_decay)
