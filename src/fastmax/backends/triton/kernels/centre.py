"""The kernel `centre`: the mean of some keys, or of their values, about which the sums are taken.

A state in bf16 of similar keys holds large numbers whose differences matter. Taken about c, with b = q . c,

    f(q . k) = f(b) + f'(b) q . (k - c) + (q . (k - c))^2 / 2        (order 2; order 1 has no last term)

is exact for any c, and small where keys are similar. c is the mean of the first `count` tokens of a sequence, `stride` apart: a
causal call takes no token of a later chunk, so that nothing of the future is in it, not even by rounding.

Schedule: one program per sequence and key head, BT tokens at a time.
"""

import triton
import triton.language as tl

from fastmax.backends.triton.kernels.common import sequence, wide


@triton.jit(do_not_specialize=["tokens", "start", "length", "count", "key_heads"])
def centre(X, MASK, OUT, CU, tokens, start, length, count, key_heads, x_b, x_h, x_n,
           DR: tl.constexpr, D: tl.constexpr, BT: tl.constexpr, SPREAD: tl.constexpr,
           PACKED: tl.constexpr, MASKED: tl.constexpr, DT: tl.constexpr):  # fmt: skip
    """Write OUT (sequences, key_heads, D), fp32, of numbers that DT has. SPREAD: over the whole sequence, not its start."""
    i, h = tl.program_id(0) // key_heads, tl.program_id(0) % key_heads
    b, lo, n = sequence(CU, i, start, length, PACKED)
    stride = tl.maximum(n // count, 1) if SPREAD else 1
    od = tl.arange(0, D)
    total = tl.zeros((D,), dtype=tl.float32)
    number = tl.zeros((), dtype=tl.float32)
    x = X + wide(b) * x_b + wide(h) * x_h
    for t0 in range(0, tl.minimum(count, n), BT):
        step = t0 + tl.arange(0, BT)
        t = step * stride
        keep = (step < count) & (t < n)
        if MASKED:
            keep = keep & (tl.load(MASK + (wide(b) * key_heads + h) * tokens + lo + t, mask=keep, other=0.0) != 0.0)
        place = x + wide(lo + t)[:, None] * x_n + od[None, :]
        total += tl.sum(tl.load(place, mask=keep[:, None] & (od < DR)[None, :], other=0.0).to(tl.float32), 0)
        number += tl.sum(keep.to(tl.float32), 0)
    mean = (total / tl.maximum(number, 1.0)).to(DT).to(tl.float32)
    tl.store(OUT + wide(tl.program_id(0)) * D + od, mean)
