"""`fastmax-lab demo`: exact, and linear in time, shown on this machine in half a minute."""

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from fastmax import fastmax_attention, reference_attention
from fastmax_lab._progress import Progress
from fastmax_lab.bench.measure import interleave, machine, seconds

EXACT = [(order, is_causal) for order in (1, 2, 3, 4) for is_causal in (False, True)]
TOKENS = [512, 1024, 2048, 4096, 8192, 16384]
HEADS, HEAD_DIM = 4, 32


def run() -> dict[str, Any]:
    """Errors of every order, and times over growing lengths."""
    torch.manual_seed(0)
    with Progress(len(EXACT) + len(TOKENS)) as bar:
        exact = [_exactness(order, is_causal, bar) for order, is_causal in EXACT]
        growth = [_growth(tokens, bar) for tokens in TOKENS]
    return {"machine": machine(), "heads": HEADS, "head_dim": HEAD_DIM, "exact": exact, "growth": growth}


def _exactness(order: int, is_causal: bool, bar: Progress) -> dict[str, Any]:
    """The largest difference to the N x N matrix form in fp64."""
    bar.step(f"exactness, order {order}, {'causal' if is_causal else 'unmasked'}")
    q, k, v = (torch.randn(1, 2, 1000, 16) for _ in range(3))
    wide = q.double(), k.double(), v.double()
    oracle = reference_attention(*wide, is_causal=is_causal, order=order)
    results = {
        "fastmax, fp32": fastmax_attention(q, k, v, is_causal=is_causal, order=order),
        "matrix, fp32": reference_attention(q, k, v, is_causal=is_causal, order=order),
        "fastmax, fp64": fastmax_attention(*wide, is_causal=is_causal, order=order),
    }
    errors = {name: (o - oracle).abs().max().item() for name, o in results.items()}
    return {"order": order, "is_causal": is_causal, "errors": errors}


def _growth(tokens: int, bar: Progress) -> dict[str, Any]:
    bar.step(f"time, N = {tokens:,}")
    q, k, v = (torch.randn(1, HEADS, tokens, HEAD_DIM) for _ in range(3))
    row: dict[str, Any] = {"tokens": tokens}
    for is_causal in (False, True):
        contestants = {
            "fastmax": lambda causal=is_causal: fastmax_attention(q, k, v, is_causal=causal),
            "softmax": lambda causal=is_causal: scaled_dot_product_attention(q, k, v, is_causal=causal),
        }
        row["causal" if is_causal else "unmasked"] = seconds(interleave(contestants, rounds=3))
    return row
