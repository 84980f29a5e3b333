"""The kernel `step`: one token of decoding joins the recent ones, and its query reads the sum and sees all of those.

Schedule: a program takes BV channels of the values of one key head, for the GP queries that share it; it has the last column, that
of the denominator, too. It reads the sum once, in the public order of rows (features.py): for each channel m the rows of
x_m x_l, l >= m, which lie one after the other. The new token is made in registers by every program, and written by the first;
no program reads what another one writes. All in the dtype of the sums.
"""

import triton
import triton.language as tl

from fastmax.backends.triton.kernels.common import normalize_rows, weight, wide


@triton.jit
def _kept(RECENT_DECAY, new_decay, count, r, R: tl.constexpr):
    """Return the factor of each recent token r: exp of the decays of all tokens after it."""
    all = tl.arange(0, R)
    later = tl.load(RECENT_DECAY + all, mask=all < count, other=0.0)
    return tl.exp(tl.sum(tl.where(all[None, :] > r[:, None], later[None, :], 0.0), 1) + new_decay)


@triton.jit(do_not_specialize=["count", "room", "features"])
def step(Q, K, V, SCALE, MASK, LOG_DECAY, TOTAL, RECENT_K, RECENT_U, RECENT_DECAY, OUT,
         count, room, features, key_heads, q_b, q_h, k_b, k_h, v_b, v_h, mask_b, decay_b, decay_h,
         D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, BV: tl.constexpr, G: tl.constexpr, GP: tl.constexpr,
         R: tl.constexpr, BR: tl.constexpr, ORDER: tl.constexpr, NORM: tl.constexpr, EPS: tl.constexpr, MASKED: tl.constexpr, DECAY: tl.constexpr,
         SUMMED: tl.constexpr, STRONGEST: tl.constexpr):  # fmt: skip
    """TOTAL (B, Hkv, features, DV + 1), RECENT_K (B, Hkv, room, D), RECENT_U, RECENT_DECAY; `count` recent tokens; SCALE (Hq,); OUT (B, Hq, DV)."""
    head = tl.program_id(0)
    b, h = head // key_heads, head % key_heads
    DT: tl.constexpr = RECENT_K.dtype.element_ty
    root = tl.full((), 0.7071067811865476, DT)  # of 1/2; a plain number would be one of fp32
    od, og, ov = tl.arange(0, DP), tl.arange(0, GP), tl.program_id(1) * BV + tl.arange(0, BV)
    md, mv = od < D, ov < DV
    counts = tl.zeros((), dtype=tl.int32) == 0
    if MASKED:
        counts = tl.load(MASK + wide(b) * mask_b) != 0
    k = tl.load(K + wide(b) * k_b + wide(h) * k_h + od, mask=md & counts, other=0.0).to(DT)
    k, _ = normalize_rows(k[None, :], md, D, NORM, EPS)
    v = tl.load(V + wide(b) * v_b + wide(h) * v_h + ov, mask=mv & counts, other=0.0).to(DT)
    one = tl.where(counts, 1.0, 0.0).to(DT)
    q_place = Q + wide(b) * q_b + wide(h * G + og)[:, None] * q_h + od[None, :]
    q = tl.load(q_place, mask=(og < G)[:, None] & md[None, :], other=0.0).to(DT)
    q, _ = normalize_rows(q, md, D, NORM, EPS)
    q *= tl.load(SCALE + h * G + og, mask=og < G, other=0.0)[:, None]
    at = wide(head) * room
    new_decay = tl.zeros((), dtype=DT)
    if DECAY:
        new_decay = tl.where(counts, tl.load(LOG_DECAY + wide(b) * decay_b + wide(h) * decay_h), 0.0).to(DT)
        new_decay = tl.maximum(new_decay, STRONGEST)
    # its own key, which has not faded
    p = weight(tl.sum(q * k, 1), ORDER) * one
    f, g = p[:, None] * v[None, :], p
    for r0 in range(0, count, BR):
        r = r0 + tl.arange(0, BR)
        seen = r < count
        keys = tl.load(RECENT_K + (at + r)[:, None] * D + od[None, :], mask=seen[:, None] & md[None, :], other=0.0)
        weights = weight(tl.sum(q[:, None, :] * keys[None, :, :], 2), ORDER)
        if DECAY:
            weights *= _kept(RECENT_DECAY + at, new_decay, count, r, R)[None, :]
        values = tl.load(
            RECENT_U + (at + r)[:, None] * (DV + 1) + ov[None, :], mask=seen[:, None] & mv[None, :], other=0.0
        )
        f += tl.sum(weights[:, :, None] * values[None, :, :], 1)
        g += tl.sum(weights * tl.load(RECENT_U + (at + r) * (DV + 1) + DV, mask=seen, other=0.0)[None, :], 1)
    if SUMMED:
        total = TOTAL + wide(head) * features * (DV + 1)
        fs = tl.zeros((GP, BV), dtype=DT) + tl.load(total + ov, mask=mv, other=0.0)[None, :]
        gs = tl.zeros((GP,), dtype=DT) + tl.load(total + DV)
        linear = tl.load(total + (1 + od)[:, None] * (DV + 1) + ov[None, :], mask=md[:, None] & mv[None, :], other=0.0)
        fs += tl.sum(q[:, :, None] * linear[None, :, :], 1)
        gs += tl.sum(q * tl.load(total + (1 + od) * (DV + 1) + DV, mask=md, other=0.0)[None, :], 1)
        if ORDER == 2:
            row = total + (1 + D) * (DV + 1)
            for m in range(D):
                tail = md & (od >= m)
                place = row + (od - m) * (DV + 1)
                qm = tl.sum(tl.where((od == m)[None, :], q, 0.0), 1)
                phi = q * qm[:, None] * tl.where(od == m, root, 1.0)[None, :]
                square = tl.load(place[:, None] + ov[None, :], mask=tail[:, None] & mv[None, :], other=0.0)
                fs += tl.sum(phi[:, :, None] * square[None, :, :], 1)
                gs += tl.sum(phi * tl.load(place + DV, mask=tail, other=0.0)[None, :], 1)
                row += (D - m) * (DV + 1)
        if DECAY:
            every = tl.arange(0, R)
            kept = tl.exp(tl.sum(tl.load(RECENT_DECAY + at + every, mask=every < count, other=0.0), 0) + new_decay)
            fs *= kept
            gs *= kept
        f += fs
        g += gs
    new = at + count
    tl.store(RECENT_U + new * (DV + 1) + ov, v, mask=mv)
    if tl.program_id(1) == 0:
        tl.store(RECENT_K + new * D + od[None, :], k, mask=md[None, :])
        tl.store(RECENT_U + new * (DV + 1) + DV, one)
        if DECAY:
            tl.store(RECENT_DECAY + new, new_decay)
    o = tl.where((g != 0.0)[:, None], f / tl.where(g != 0.0, g, 1.0)[:, None], 0.0)
    out = OUT + (wide(head) * G + og)[:, None] * DV + ov[None, :]
    tl.store(out, o.to(OUT.dtype.element_ty), mask=(og < G)[:, None] & mv[None, :])
