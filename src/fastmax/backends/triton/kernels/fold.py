"""The kernel `fold`: the oldest recent tokens of decoding join the sum, in place.

Schedule: a program takes BV columns of the sum of one key head, and one channel m: the rows of x_m x_l, l >= m, in the public
order; m = D has the constant row and those of degree one. Each number is loaded and stored once, by one program, and the
tokens are added to it in order.
"""

import triton
import triton.language as tl

from fastmax.backends.triton.kernels.common import wide


@triton.jit(do_not_specialize=["number", "room", "features"])
def fold(TOTAL, RECENT_K, RECENT_U, RECENT_DECAY, number, room, features,
         D: tl.constexpr, DP: tl.constexpr, COLUMNS: tl.constexpr, BV: tl.constexpr, ORDER: tl.constexpr,
         DECAY: tl.constexpr):  # fmt: skip
    """Add the first `number` tokens to the sum; COLUMNS = Dv + 1. Grid: (heads * (D + 1), blocks of columns); order 1: (heads, blocks)."""
    PER_HEAD: tl.constexpr = D + 1 if ORDER == 2 else 1
    head, m = tl.program_id(0) // PER_HEAD, D - tl.program_id(0) % PER_HEAD
    root = tl.full((), 0.7071067811865476, RECENT_K.dtype.element_ty)  # of 1/2; a plain number would be one of fp32
    od, ov = tl.arange(0, DP), tl.program_id(1) * BV + tl.arange(0, BV)
    at = wide(head) * room
    total = TOTAL + wide(head) * features * COLUMNS
    first = m == D
    # rows of degree two begin behind those of degree one; those of channel m behind those of the channels before it
    begin = tl.where(first, 1, 1 + D + m * D - m * (m - 1) // 2 - m)
    rows = (od < D) & (first | (od >= m))
    place = total + (begin + od)[:, None] * COLUMNS + ov[None, :]
    both = rows[:, None] & (ov < COLUMNS)[None, :]
    sums = tl.load(place, mask=both, other=0.0)
    constant = tl.load(total + ov, mask=first & (ov < COLUMNS), other=0.0)
    for j in range(number):
        k = tl.load(RECENT_K + (at + j) * D + od, mask=od < D, other=0.0)
        u = tl.load(RECENT_U + (at + j) * COLUMNS + ov, mask=ov < COLUMNS, other=0.0)
        km = tl.load(RECENT_K + (at + j) * D + m, mask=m < D, other=1.0)
        phi = k * km * tl.where(od == m, root, 1.0)
        if DECAY:
            fade = tl.exp(tl.load(RECENT_DECAY + at + j))
            sums *= fade
            constant *= fade
        sums += phi[:, None] * u[None, :]
        constant += u
    tl.store(place, sums, mask=both)
    tl.store(total + ov, constant, mask=first & (ov < COLUMNS))
