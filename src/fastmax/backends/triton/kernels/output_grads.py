"""The kernel `output_grads`: w = [do / g, dg - (do . o) / g], the gradient of [f, g].

The last channel is taken of the rounded others, so that their rounding weighs as v - o does, not as v. It is written twice:
for the dense form, and for states: of values v - c_v, and faded since the chunk began. f(b) and f'(b), b = q . c, go with it.

Schedule: a program takes BT queries of one head. A query that saw no key (g = 0) gives zeros.
"""

import triton
import triton.language as tl

from fastmax.backends.triton.kernels.common import stride, tile_of_rows, weight, wide


@triton.jit(
    do_not_specialize=[
        "tokens", "per_sequence", "count", "o_b", "o_h", "o_n", "do_b", "do_h", "do_n", "g_b", "g_h", "dg_b", "dg_h",
    ]
)  # fmt: skip
def output_grads(O, DO, G, DG, Q_HAT, FADE, CENTRE, CENTRE_V, W, W1, W_STATE, W1_STATE, F0, F1, CU, tokens, per_sequence, count,
                 o_b, o_h, o_n, do_b, do_h, do_n, g_b, g_h, dg_b, dg_h,
                 D: tl.constexpr, DVR: tl.constexpr, DV: tl.constexpr, ORDER: tl.constexpr, BT: tl.constexpr, GROUPS: tl.constexpr, PACKED: tl.constexpr,
                 HAS_DO: tl.constexpr, HAS_DG: tl.constexpr, STATE: tl.constexpr, DECAY: tl.constexpr, ALIGNED: tl.constexpr):  # fmt: skip
    """Write W, W_STATE (B, Hq, N, DV) in the dtype of products; W1, W1_STATE (B, Hq, N), fp32. W_STATE is W without DECAY."""
    i, b, lo, n, t0 = tile_of_rows(CU, 0, tokens, per_sequence, count, BT, PACKED)
    if t0 >= n:
        return
    h, heads = tl.program_id(1), tl.num_programs(1)
    t, ov = t0 + tl.arange(0, BT), tl.arange(0, DV)
    mt = t < n
    at = wide(lo + t)
    both = mt[:, None] & (ov < DVR)[None, :]
    w = tl.zeros((BT, DV), dtype=tl.float32).to(W.dtype.element_ty)
    w1 = tl.zeros((BT,), dtype=tl.float32)
    if HAS_DO:
        o = (
            O
            + wide(b) * stride(o_b, ALIGNED)
            + wide(h) * stride(o_h, ALIGNED)
            + at[:, None] * stride(o_n, ALIGNED)
            + ov[None, :]
        )
        do = (
            DO
            + wide(b) * stride(do_b, ALIGNED)
            + wide(h) * stride(do_h, ALIGNED)
            + at[:, None] * stride(do_n, ALIGNED)
            + ov[None, :]
        )
        o, do = tl.load(o, mask=both, other=0.0), tl.load(do, mask=both, other=0.0)
        g = tl.load(G + wide(b) * g_b + wide(h) * g_h + at, mask=mt, other=0.0)
        inverse = tl.where(g != 0.0, 1.0 / tl.where(g != 0.0, g, 1.0), 0.0)
        w = (do.to(tl.float32) * inverse[:, None]).to(W.dtype.element_ty)
        w1 = -tl.sum(w.to(tl.float32) * o.to(tl.float32), 1)
    if HAS_DG:
        w1 += tl.load(DG + wide(b) * dg_b + wide(h) * dg_h + at, mask=mt, other=0.0)
    row = (wide(b) * heads + h) * tokens + lo + t
    tl.store(W + row[:, None] * DV + ov[None, :], w, mask=mt[:, None])
    tl.store(W1 + row, w1, mask=mt)
    if STATE:
        key_heads, hk = heads // GROUPS, h // GROUPS
        own, od = wide(i) * key_heads + hk, tl.arange(0, D)
        q = tl.load(Q_HAT + row[:, None] * D + od[None, :], mask=mt[:, None], other=0.0).to(tl.float32)
        near = tl.sum(q * tl.load(CENTRE + own * D + od)[None, :], 1)
        tl.store(F0 + row, weight(near, ORDER), mask=mt)
        tl.store(F1 + row, weight(near, ORDER - 1), mask=mt)
        last = w1 + tl.sum(w.to(tl.float32) * tl.load(CENTRE_V + own * DV + ov)[None, :], 1)
        if DECAY:
            fade = tl.load(FADE + (wide(b) * key_heads + hk) * tokens + lo + t, mask=mt, other=0.0)
            last *= fade
            w = (w.to(tl.float32) * fade[:, None]).to(W.dtype.element_ty)
            tl.store(W_STATE + row[:, None] * DV + ov[None, :], w, mask=mt[:, None])
        tl.store(W1_STATE + row, last, mask=mt)
