"""`fastmax-lab bench long`: one head over a million tokens: time, memory and precision."""

import time

import torch
from torch import Tensor

from fastmax import fastmax_attention
from fastmax_lab._progress import Progress
from fastmax_lab.bench.memory import peak
from fastmax_lab.measurements import Recorder

TOKENS, QUARTER, LAST, HEAD_DIM = 1 << 20, 1 << 18, 1000, 64


def run(record: Recorder, quick: bool) -> None:
    """Time causal forward + backward of order 2 at a quarter of the length and at the whole, of a sixteenth if `quick`."""
    whole, quarter = (TOKENS // 16, QUARTER // 16) if quick else (TOKENS, QUARTER)
    with Progress(4) as bar:
        bar.step(f"{quarter:,} tokens")
        short = _seconds(quarter)
        bar.step(f"{whole:,} tokens")
        long = _seconds(whole)
        bar.step("memory")
        used = peak(tokens=whole, head_dim=HEAD_DIM, order=2, is_causal=True, backend="auto")
        bar.step("precision")
        error = _error(whole)
    settings = {"tokens": [quarter, whole], "last": LAST}
    record.add(f"{whole}", settings, {"seconds": [short, long], "memory": used, "error": error})


def _inputs(tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, tokens, HEAD_DIM) for _ in range(3))
    return q, k, v


def _seconds(tokens: int) -> float:
    """Return the better of two passes."""
    q, k, v = leaves = _inputs(tokens)
    for x in leaves:
        x.requires_grad_()
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        o = fastmax_attention(q, k, v, is_causal=True)
        torch.autograd.grad(o, leaves, torch.ones_like(o))
        seconds.append(time.perf_counter() - start)
    return min(seconds)


@torch.inference_mode()
def _error(tokens: int) -> float:
    q, k, v = _inputs(tokens)
    narrow = fastmax_attention(q, k, v, is_causal=True)[..., -LAST:, :]
    wide = fastmax_attention(q.double(), k.double(), v.double(), is_causal=True)[..., -LAST:, :]
    return float((narrow - wide).norm() / wide.norm())
