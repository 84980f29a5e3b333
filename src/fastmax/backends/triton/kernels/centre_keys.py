"""The kernel `centre_keys`: keys and values as states take them, k_hat - c and v - c_v, the values faded until their chunk ends.

Schedule: a program takes BT keys of one head. The values of keys that do not count become zeros, so that `accumulate` need not ask.
"""

import triton
import triton.language as tl

from fastmax.backends.triton.kernels.common import tile_of_rows, wide


@triton.jit(do_not_specialize=["tokens", "per_sequence", "count"])
def centre_keys(K_HAT, V, COUNTS, FADE, CENTRE, CENTRE_V, K_STATE, V_STATE, LAST, CU, tokens, per_sequence, count,
                D: tl.constexpr, DV: tl.constexpr, BT: tl.constexpr, PACKED: tl.constexpr, MASKED: tl.constexpr,
                DECAY: tl.constexpr):  # fmt: skip
    """Write K_STATE (B, Hkv, N, D), V_STATE (.., DV) in the dtype of products, and with DECAY LAST (B, Hkv, N), fp32: the ones."""
    i, b, lo, n, t0 = tile_of_rows(CU, 0, tokens, per_sequence, count, BT, PACKED)
    if t0 >= n:
        return
    h, heads = tl.program_id(1), tl.num_programs(1)
    t, od, ov = t0 + tl.arange(0, BT), tl.arange(0, D), tl.arange(0, DV)
    mt = t < n
    row, own = (wide(b) * heads + h) * tokens + lo + t, wide(i) * heads + h
    last = tl.load(COUNTS + row, mask=mt, other=0.0) if MASKED else mt.to(tl.float32)
    k = tl.load(K_HAT + row[:, None] * D + od[None, :], mask=mt[:, None], other=0.0).to(tl.float32)
    k -= tl.load(CENTRE + own * D + od)[None, :]
    tl.store(K_STATE + row[:, None] * D + od[None, :], k.to(K_STATE.dtype.element_ty), mask=mt[:, None])
    v = tl.load(V + row[:, None] * DV + ov[None, :], mask=mt[:, None], other=0.0).to(tl.float32)
    v -= tl.load(CENTRE_V + own * DV + ov)[None, :]
    if DECAY:
        last *= tl.load(FADE + row, mask=mt, other=0.0)
        tl.store(LAST + row, last, mask=mt)
    v *= last[:, None]
    tl.store(V_STATE + row[:, None] * DV + ov[None, :], v.to(V_STATE.dtype.element_ty), mask=mt[:, None])
