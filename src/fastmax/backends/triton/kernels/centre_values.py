"""The kernel `centre_values`: the values of keys as states take them, v - c_v, faded until their chunk ends.

Schedule: a program takes BT keys of one head. Keys that do not count become zeros, so that `accumulate` need not ask.
"""

import triton
import triton.language as tl

from fastmax.backends.triton.kernels.common import tile_of_rows, wide


@triton.jit(do_not_specialize=["tokens", "start", "length", "per_sequence"])
def centre_values(V, MASK, FADE, CENTRE_V, OUT, LAST, OWNER, FIRST, CU, tokens, start, length, per_sequence, v_b, v_h, v_n,
                  DVR: tl.constexpr, DV: tl.constexpr, BT: tl.constexpr, PACKED: tl.constexpr, DECAY: tl.constexpr):  # fmt: skip
    """OUT (B, Hkv, N, DV) in the dtype of the products; LAST (B, Hkv, N), fp32, is that of the channel of ones."""
    i, b, lo, n, t0 = tile_of_rows(OWNER, FIRST, CU, start, length, per_sequence, BT, PACKED)
    if t0 >= n:
        return
    h, heads = tl.program_id(1), tl.num_programs(1)
    t, ov = t0 + tl.arange(0, BT), tl.arange(0, DV)
    row = (wide(b) * heads + h) * tokens + lo + t
    last = tl.load(MASK + row, mask=t < n, other=0.0)
    place = V + wide(b) * v_b + wide(h) * v_h + wide(lo + t)[:, None] * v_n + ov[None, :]
    v = tl.load(place, mask=(last != 0.0)[:, None] & (ov < DVR)[None, :], other=0.0).to(tl.float32)
    v = tl.where((last != 0.0)[:, None], v - tl.load(CENTRE_V + (wide(i) * heads + h) * DV + ov)[None, :], 0.0)
    if DECAY:
        last *= tl.load(FADE + row, mask=t < n, other=0.0)
        v *= last[:, None]
    tl.store(OUT + row[:, None] * DV + ov[None, :], v.to(OUT.dtype.element_ty), mask=(t < n)[:, None])
    tl.store(LAST + row, last, mask=t < n)
