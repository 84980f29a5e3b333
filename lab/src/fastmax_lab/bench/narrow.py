"""`fastmax-lab bench narrow`: queries and keys of fewer channels than values, against those of as many and softmax."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from fastmax import fastmax_attention
from fastmax_lab._progress import Progress
from fastmax_lab.bench.measure import interleave, seconds
from fastmax_lab.measurements import Recorder, slug
from fastmax_lab.report.table import passes

CELLS = ((64, (16, 32, 64)), (128, (32, 64, 128)))
"""Channels of values, and those of queries and keys beside them."""
SOFTMAX = "sdpa"
HEADS = 2


def run(record: Recorder, quick: bool, tokens: tuple[int, ...] = (4096, 16384)) -> None:
    """Record causal order 2 in fp32, forward and forward + backward. Softmax has as many channels as values have."""
    with Progress(4 * len(tokens)) as bar:
        for length in tokens:
            for value_dim, dims in CELLS:
                for backward in (False, True):
                    bar.step(f"N = {length:,}, Dv = {value_dim}, {passes(backward)}")
                    calls = {SOFTMAX: _call(length, value_dim, value_dim, scaled_dot_product_attention, backward)}
                    calls |= {str(d): _call(length, d, value_dim, fastmax_attention, backward) for d in dims}
                    timings = interleave(calls, rounds=2 if quick else 5, slow=(0.5, 2))
                    cell = {"tokens": length, "value_dim": value_dim, "heads": HEADS, "order": 2, "backward": backward}
                    record.add(slug(length, f"v{value_dim}", passes(backward)), cell, {"seconds": seconds(timings)})


def _call(
    tokens: int, head_dim: int, value_dim: int, attend: Callable[..., Tensor], backward: bool
) -> Callable[[], object]:
    sizes = head_dim, head_dim, value_dim, value_dim
    q, k, v, do = (torch.randn(1, tokens, HEADS, size).transpose(1, 2) for size in sizes)
    leaves = [x.requires_grad_(backward) for x in (q, k, v)]

    def call() -> None:
        o = attend(q, k, v, is_causal=True)
        if backward:
            torch.autograd.grad(o, leaves, do)

    return call
