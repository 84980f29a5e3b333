"""The kernel `fade`: forgetting as the other kernels take it: factors per token, and sums over a chunk in two floats.

Schedule: a program takes one chunk of one head and walks it twice, summing in fp64: for the total, then for each token.
"""

import triton
import triton.language as tl

from fastmax.backends.triton.kernels.common import piece_of_both, sequence, wide


@triton.jit(do_not_specialize=["tokens", "chunk", "per_sequence", "count", "d_b", "d_h", "d_n"])
def fade(LOG_DECAY, HIGH, LOW, UNTIL, FROM, CU, tokens, chunk, per_sequence, count, d_b, d_h, d_n,
         BT: tl.constexpr, PACKED: tl.constexpr, STRONGEST: tl.constexpr):  # fmt: skip
    """Write (B, key_heads, tokens), fp32, with c_t the sum of log_decay from the start of the chunk to token t.

    HIGH + LOW = c_t; UNTIL = exp(c_t), what a state fades by until t; FROM = exp(c_last - c_t), what t fades by until the chunk ends.
    """
    h, key_heads = tl.program_id(1), tl.num_programs(1)
    i, c = piece_of_both(CU, CU, tl.program_id(0), chunk, per_sequence, count, PACKED)
    b, lo, n = sequence(CU, i, 0, tokens, PACKED)
    begin, end = c * chunk, tl.minimum((c + 1) * chunk, n)
    decays = LOG_DECAY + wide(b) * d_b + wide(h) * d_h
    row = (wide(b) * key_heads + h) * tokens + lo
    whole = tl.zeros((), dtype=tl.float64)
    for t0 in range(begin, end, BT):
        t = t0 + tl.arange(0, BT)
        x = tl.load(decays + wide(lo + t) * d_n, mask=t < end, other=0.0).to(tl.float64)
        whole += tl.sum(tl.maximum(x, STRONGEST), 0)
    before = tl.zeros((), dtype=tl.float64)
    for t0 in range(begin, end, BT):
        t = t0 + tl.arange(0, BT)
        x = tl.load(decays + wide(lo + t) * d_n, mask=t < end, other=0.0).to(tl.float64)
        x = tl.maximum(x, STRONGEST)
        sums = before + tl.cumsum(x, 0)
        before += tl.sum(x, 0)
        high = sums.to(tl.float32)
        tl.store(HIGH + row + t, high, mask=t < end)
        tl.store(LOW + row + t, (sums - high.to(tl.float64)).to(tl.float32), mask=t < end)
        tl.store(UNTIL + row + t, tl.exp(sums).to(tl.float32), mask=t < end)
        tl.store(FROM + row + t, tl.exp(tl.minimum(whole - sums, 0.0)).to(tl.float32), mask=t < end)
