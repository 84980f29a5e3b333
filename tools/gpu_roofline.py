"""An estimate, not a measurement: the time of FlashAttention over that of the Triton kernels, causal, bf16, by arithmetic.

    python tools/gpu_roofline.py

Operations are those of the kernels (docs/gpu.md), at an assumed share of the peak; FlashAttention has its published pace.
"""

from collections.abc import Iterator

import torch

from fastmax.backends.triton.states import Shape
from fastmax.backends.triton.tiles import tiles_for
from fastmax_lab._roofline import FLASH, GPUS

SHARES = {"A100": (0.5, 0.25), "H100": (0.4, 0.2)}
"""Shares of the peak that the mix of instructions would allow with perfect overlap, and half of them."""

TOKENS = (4096, 16384, 65536)


def per_token(head_dim: int, order: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return (FLOP, bytes) per token and head of the forward pass, and of both passes. D = Dv."""
    d, tiles = head_dim, tiles_for("sm_80", head_dim, head_dim, order, torch.bfloat16)
    shape = Shape(d, d, d, d, order, tiles.block)
    square = shape.square
    columns = (tiles.chunk + tiles.rows) / 2
    sums = 2 * shape.rows * d + 2 * square
    read = 2 * shape.rows * d + 4 * square + 4 * d * columns
    vjp = 2 * (square + d) * d + 6 * square + 6 * d * columns
    # a state of a chunk: its sums written and read, what is before it written and read, in fp32 and in bf16
    state = (8 * shape.size + 4 * shape.body + 8 * (shape.size - shape.body)) / tiles.chunk
    moved = 2 * d * (3 + 1 + 6 + 5) + state  # q k v, o; tokens normalized, padded and centred
    backward = sums + vjp + (sums + 2 * square) + vjp + (read - 4 * square)
    moved_back = 2 * d * (6 + 10 + 10) + 2 * state
    return (sums + read, moved), (sums + read + backward, moved + moved_back)


def seconds(flop: float, moved: float, gpu: str, share: float) -> float:
    """Add products and memory: most traffic is that of kernels that multiply nothing, and kernels follow one another."""
    peak = GPUS[gpu]
    return flop / (peak.tflops * 1e12 * share) + moved / (0.8 * peak.gigabytes_per_second * 1e9)


def lines() -> Iterator[str]:
    """Yield the tables of docs/gpu.md."""
    for order in (2, 1):
        yield f"\n| order {order} | share of peak | {' | '.join(f'{n // 1024}k' for n in TOKENS)} | equal at |"
        yield f"|---|---|{'---|' * len(TOKENS)}---|"
        for (gpu, flash), paces in FLASH.items():
            for head_dim, pace in paces.items():
                for share in SHARES[gpu]:
                    own = [seconds(*cost, gpu, share) for cost in per_token(head_dim, order)]
                    theirs = [factor * head_dim / rate for factor, rate in zip((2, 7), pace, strict=True)]  # times N
                    ratios = [" / ".join(f"{n * t / s:.2g}" for t, s in zip(theirs, own, strict=True)) for n in TOKENS]
                    equal = " / ".join(f"{s / t / 1000:.2g}k" for t, s in zip(theirs, own, strict=True))
                    yield f"| {gpu}, {flash}, D = {head_dim} | {share:.0%} | {' | '.join(ratios)} | {equal} |"


if __name__ == "__main__":
    print("\n".join(lines()))
