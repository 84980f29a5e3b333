"""The kernel `centre`: the means of some keys and of their values, about which the sums are taken.

A state in bf16 of similar keys holds large numbers whose differences matter. Taken about c, with b = q . c,

    f(q . k) = f(b) + f'(b) q . (k - c) + (q . (k - c))^2 / 2        (order 2; order 1 has no last term)

is exact for any c, and small where keys are similar. c is the mean of the first `count` tokens of a sequence, `stride` apart: a
causal call takes no token of a later chunk, so that nothing of the future is in it, not even by rounding.

Schedule: one program per sequence and key head, BT tokens at a time.
"""

import triton
import triton.language as tl

from fastmax.backends.triton.kernels.common import sequence, wide


@triton.jit(do_not_specialize=["tokens", "number"])
def centre(X, V, COUNTS, OUT, OUT_V, CU, tokens, number,
           D: tl.constexpr, DV: tl.constexpr, BT: tl.constexpr, SPREAD: tl.constexpr, PACKED: tl.constexpr,
           MASKED: tl.constexpr):  # fmt: skip
    """Write OUT (sequences, heads, D) and OUT_V (.., DV), fp32, of numbers that X has. SPREAD: over the whole sequence, not its start."""
    i, h, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    b, lo, n = sequence(CU, i, 0, tokens, PACKED)
    stride = tl.maximum(n // number, 1) if SPREAD else 1
    od, ov = tl.arange(0, D), tl.arange(0, DV)
    total, total_v = tl.zeros((D,), dtype=tl.float32), tl.zeros((DV,), dtype=tl.float32)
    found = tl.zeros((), dtype=tl.float32)
    row = (wide(b) * heads + h) * tokens + lo
    for t0 in range(0, tl.minimum(number, n), BT):
        step = t0 + tl.arange(0, BT)
        t = row + step * stride
        keep = (step < number) & (step * stride < n)
        total += tl.sum(tl.load(X + t[:, None] * D + od[None, :], mask=keep[:, None], other=0.0).to(tl.float32), 0)
        total_v += tl.sum(tl.load(V + t[:, None] * DV + ov[None, :], mask=keep[:, None], other=0.0).to(tl.float32), 0)
        found += tl.sum(tl.load(COUNTS + t, mask=keep, other=0.0) if MASKED else keep.to(tl.float32), 0)
    own, found = wide(i) * heads + h, tl.maximum(found, 1.0)
    tl.store(OUT + own * D + od, (total / found).to(X.dtype.element_ty).to(tl.float32))
    tl.store(OUT_V + own * DV + ov, (total_v / found).to(X.dtype.element_ty).to(tl.float32))
