"""The kernels `step` and `combine`: one token of decoding joins the recent ones, and its query reads the sum and sees all of those.

Schedule of `step`: program 0 of a key head sees the recent tokens, makes the new one in registers and writes it. Each other one takes
2 CHANNELS channels m of the sum, the rows x_m x_l, l >= m, in the public order (features.py): the first and the last ones that
are left, so that all have as many rows. It multiplies row by row, and adds up over rows once, at its end. A program has BV
channels of the values, and the last column, that of the denominator, for the GP queries that share a key head. `combine` adds up
the programs' parts, in one order, and divides. No program reads what another one writes. All in the dtype of the sums.
"""

import triton
import triton.language as tl

from fastmax.backends.triton.kernels.common import normalize_rows, weight, wide


@triton.jit
def _kept(RECENT_DECAY, new_decay, count, r, R: tl.constexpr):
    """Return the factor of each recent token r: exp of the decays of all tokens after it. Of the sum r is -1."""
    all = tl.arange(0, R)
    later = tl.load(RECENT_DECAY + all, mask=all < count, other=0.0)
    return tl.exp(tl.sum(tl.where(all[None, :] > r[:, None], later[None, :], 0.0), 1) + new_decay)


@triton.jit
def _rows_of_channel(q, total, f, g, m, od, ov, D: tl.constexpr, DV: tl.constexpr):
    """Add the products of queries with the rows of channel m to f (GP, DP, BV) and g (GP, DP)."""
    root = tl.full((), 0.7071067811865476, q.dtype)  # of 1/2; a plain number would be one of fp32
    row = 1 + D + m * D - m * (m - 1) // 2
    tail = (od >= m) & (od < D)
    place = total + (row + od - m) * (DV + 1)
    qm = tl.sum(tl.where((od == m)[None, :], q, 0.0), 1)
    phi = q * qm[:, None] * tl.where(od == m, root, 1.0)[None, :]
    square = tl.load(place[:, None] + ov[None, :], mask=tail[:, None] & (ov < DV)[None, :], other=0.0)
    f += phi[:, :, None] * square[None, :, :]
    g += phi * tl.load(place + DV, mask=tail, other=0.0)[None, :]
    return f, g


@triton.jit(
    do_not_specialize=[
        "count",
        "room",
        "features",
        "key_heads",
        "q_b",
        "q_h",
        "k_b",
        "k_h",
        "v_b",
        "v_h",
        "mask_b",
        "decay_b",
        "decay_h",
    ]
)
def step(Q, K, V, SCALE, MASK, LOG_DECAY, TOTAL, RECENT_K, RECENT_U, RECENT_DECAY, F, G_OUT,
         count, room, features, key_heads, q_b, q_h, k_b, k_h, v_b, v_h, mask_b, decay_b, decay_h,
         D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, BV: tl.constexpr, G: tl.constexpr, GP: tl.constexpr,
         R: tl.constexpr, BR: tl.constexpr, CHANNELS: tl.constexpr, ORDER: tl.constexpr, NORM: tl.constexpr, EPS: tl.constexpr,
         MASKED: tl.constexpr, DECAY: tl.constexpr, STRONGEST: tl.constexpr):  # fmt: skip
    """Write parts F (B * Hkv, parts, GP, DVP) and G_OUT (.., GP) of numerator and denominator.

    TOTAL is (B, Hkv, features, DV + 1); RECENT_K (B, Hkv, room, D), RECENT_U and RECENT_DECAY have `count` tokens; SCALE is (Hq,).
    """
    head, part = tl.program_id(0), tl.program_id(1)
    b, h = head // key_heads, head % key_heads
    DT: tl.constexpr = RECENT_K.dtype.element_ty
    od, og, ov = tl.arange(0, DP), tl.arange(0, GP), tl.program_id(2) * BV + tl.arange(0, BV)
    md, mv = od < D, ov < DV
    counts = tl.zeros((), dtype=tl.int32) == 0
    if MASKED:
        counts = tl.load(MASK + wide(b) * mask_b) != 0
    q_place = Q + wide(b) * q_b + wide(h * G + og)[:, None] * q_h + od[None, :]
    q = tl.load(q_place, mask=(og < G)[:, None] & md[None, :], other=0.0).to(DT)
    q, _q_factor = normalize_rows(q, md, D, NORM, EPS)
    q *= tl.load(SCALE + h * G + og, mask=og < G, other=0.0)[:, None]
    at = wide(head) * room
    new_decay = tl.zeros((), dtype=DT)
    if DECAY:
        new_decay = tl.where(counts, tl.load(LOG_DECAY + wide(b) * decay_b + wide(h) * decay_h), 0.0).to(DT)
        new_decay = tl.maximum(new_decay, STRONGEST)
    f_part, g_part = tl.zeros((GP, BV), dtype=DT), tl.zeros((GP,), dtype=DT)
    if part == 0:
        k = tl.load(K + wide(b) * k_b + wide(h) * k_h + od, mask=md & counts, other=0.0).to(DT)
        k, _k_factor = normalize_rows(k[None, :], md, D, NORM, EPS)
        v = tl.load(V + wide(b) * v_b + wide(h) * v_h + ov, mask=mv & counts, other=0.0).to(DT)
        one = tl.where(counts, 1.0, 0.0).to(DT)
        # its own key, which has not faded
        g_part += weight(tl.sum(q * k, 1), ORDER) * one
        f_part += g_part[:, None] * v[None, :]
        for r0 in range(0, count, BR):
            r = r0 + tl.arange(0, BR)
            seen = r < count
            keys = tl.load(RECENT_K + (at + r)[:, None] * D + od[None, :], mask=seen[:, None] & md[None, :], other=0.0)
            weights = weight(tl.sum(q[:, None, :] * keys[None, :, :], 2), ORDER)
            if DECAY:
                weights *= _kept(RECENT_DECAY + at, new_decay, count, r, R)[None, :]
            place = RECENT_U + (at + r) * (DV + 1)
            values = tl.load(place[:, None] + ov[None, :], mask=seen[:, None] & mv[None, :], other=0.0)
            f_part += tl.sum(weights[:, :, None] * values[None, :, :], 1)
            g_part += tl.sum(weights * tl.load(place + DV, mask=seen, other=0.0)[None, :], 1)
        new = at + count
        tl.store(RECENT_U + new * (DV + 1) + ov, v, mask=mv)
        if tl.program_id(2) == 0:
            tl.store(RECENT_K + new * D + od[None, :], k, mask=md[None, :])
            tl.store(RECENT_U + new * (DV + 1) + DV, one)
            if DECAY:
                tl.store(RECENT_DECAY + new, new_decay)
    else:
        total = TOTAL + wide(head) * features * (DV + 1)
        f, g = tl.zeros((GP, DP, BV), dtype=DT), tl.zeros((GP, DP), dtype=DT)
        if part == 1:
            f_part += tl.load(total + ov, mask=mv, other=0.0)[None, :]
            g_part += tl.load(total + DV)
            linear = total + (1 + od) * (DV + 1)
            rows = tl.load(linear[:, None] + ov[None, :], mask=md[:, None] & mv[None, :], other=0.0)
            f += q[:, :, None] * rows[None, :, :]
            g += q * tl.load(linear + DV, mask=md, other=0.0)[None, :]
        if ORDER == 2:
            for m in range((part - 1) * CHANNELS, tl.minimum(part * CHANNELS, (D + 1) // 2)):
                f, g = _rows_of_channel(q, total, f, g, m, od, ov, D, DV)
                if D - 1 - m > m:
                    f, g = _rows_of_channel(q, total, f, g, D - 1 - m, od, ov, D, DV)
        f_part += tl.sum(f, 1)
        g_part += tl.sum(g, 1)
        if DECAY:
            kept = _kept(RECENT_DECAY + at, new_decay, count, tl.full((1,), -1, dtype=tl.int32), R)
            f_part *= kept[:, None]
            g_part *= kept
    row = (wide(head) * tl.num_programs(1) + part) * GP + og
    tl.store(F + row[:, None] * DVP + ov[None, :], f_part)
    if tl.program_id(2) == 0:
        tl.store(G_OUT + row, g_part)


@triton.jit(do_not_specialize=["parts"])
def combine(F, G_IN, OUT, parts, DV: tl.constexpr, DVP: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, P: tl.constexpr):  # fmt: skip
    """Write OUT (B * Hkv * G, DV) of the parts, at most P. Schedule: a program has one query."""
    head, query = tl.program_id(0) // G, tl.program_id(0) % G
    part, ov = tl.arange(0, P), tl.arange(0, DVP)
    row = (wide(head) * parts + part) * GP + query
    f = tl.sum(tl.load(F + row[:, None] * DVP + ov[None, :], mask=(part < parts)[:, None], other=0.0), 0)
    g = tl.sum(tl.load(G_IN + row, mask=part < parts, other=0.0), 0)
    o = tl.where(g != 0.0, f / tl.where(g != 0.0, g, 1.0), 0.0)
    tl.store(OUT + wide(tl.program_id(0)) * DV + ov, o.to(OUT.dtype.element_ty), mask=ov < DV)
