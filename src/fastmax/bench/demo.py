"""`fastmax demo`: exact, and linear in time, shown on this machine in half a minute."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from fastmax import fastmax_attention, reference_attention
from fastmax._progress import Progress
from fastmax.bench.measure import interleave, machine
from fastmax.report.table import milliseconds, table, times

EXACT = [(order, is_causal) for order in (1, 2, 3, 4) for is_causal in (False, True)]
TOKENS = [512, 1024, 2048, 4096, 8192, 16384]
HEADS, HEAD_DIM = 4, 32


def run() -> None:
    """Prints two tables."""
    torch.manual_seed(0)
    with Progress(len(EXACT) + len(TOKENS)) as bar:
        exact = [_exactness(order, is_causal, bar) for order, is_causal in EXACT]
        growth = [_growth(tokens, bar) for tokens in TOKENS]
    m = machine()
    print(f"fastmax {m['fastmax']}, torch {m['torch']}, {m['processor']}, {m['threads']} threads\n")
    print("1. It is exact: the largest difference to the N x N matrix form in fp64, N = 1,000, D = 16\n")
    print(table(["order", "", "fastmax, fp32", "matrix, fp32", "fastmax, fp64"], exact))
    print(f"\n2. It is linear: forward pass, order 2, {HEADS} heads of {HEAD_DIM}, fp32\n")
    header = ["N", "fastmax", "softmax", "speed-up", "causal: fastmax", "softmax", "speed-up"]
    print(table(header, growth))


def _exactness(order: int, is_causal: bool, bar: Progress) -> list[str]:
    label = "causal" if is_causal else "unmasked"
    bar.step(f"exactness, order {order}, {label}")
    q, k, v = (torch.randn(1, 2, 1000, 16) for _ in range(3))
    wide = q.double(), k.double(), v.double()
    oracle = reference_attention(*wide, is_causal=is_causal, order=order)
    results = [
        fastmax_attention(q, k, v, is_causal=is_causal, order=order),
        reference_attention(q, k, v, is_causal=is_causal, order=order),
        fastmax_attention(*wide, is_causal=is_causal, order=order),
    ]
    return [str(order), label, *(f"{(o - oracle).abs().max().item():.1e}" for o in results)]


def _growth(tokens: int, bar: Progress) -> list[str]:
    bar.step(f"time, N = {tokens:,}")
    q, k, v = (torch.randn(1, HEADS, tokens, HEAD_DIM) for _ in range(3))
    row = [f"{tokens:,}"]
    for is_causal in (False, True):
        contestants = {
            "fastmax": lambda causal=is_causal: fastmax_attention(q, k, v, is_causal=causal),
            "softmax": lambda causal=is_causal: scaled_dot_product_attention(q, k, v, is_causal=causal),
        }
        best = {name: t.best for name, t in interleave(contestants, rounds=3).items()}
        row += [milliseconds(best["fastmax"]), milliseconds(best["softmax"]), times(best["softmax"] / best["fastmax"])]
    return row
