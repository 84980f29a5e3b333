"""The kernel `read`: rows read the state before their chunk, S^T phi(x), and see the columns of their chunk densely.

    FORWARD   rows are queries, columns are keys with their values: o and g
    else      rows are keys, columns are queries with w, the state is T: the gradient of the values (and, with DECAY, of c)

Schedule: a program takes BT rows of one head. It loops over the pairs I >= J of blocks of B channels, U channels m of block I
at a time. For each m the features x_m x_J are made in registers, and the product of BT x B of them with as many rows of the state
is one step on the tensor cores. (x_m is a separate column, not a tile with its neighbours, which would go through shared
memory.) With a single block x_J is loaded once. Then it loops over the columns it sees, BS at a time.

The sums are about the centre c of the keys. With b = q . c queries multiply them by f(b), f'(b) and 1, by degree; keys read with
k - c (X_STATE) what queries have multiplied. The denominator is read in two products, of the high and the low halves of its column.
"""

import triton
import triton.language as tl

from fastmax.backends.triton.kernels.common import (
    faded,
    head_of_rows,
    seen,
    sequence,
    slot_of_rows,
    split,
    tile_of_rows,
    weight,
    wide,
)  # fmt: skip


@triton.jit(
    do_not_specialize=["tokens", "tokens_y", "start", "length", "length_y", "per_sequence", "chunk", "key_heads"]
)
def read(X, X_STATE, Y, A, A1, CENTRE, CENTRE_V, S, Z, FADE, HIGH, LOW, OUT, G, V, MASK, DC,
         OWNER, FIRST, CHUNKS, CU, CU_Y, tokens, tokens_y, start, length, length_y, per_sequence, chunk, key_heads,
         a_b, a_h, a_n, out_b, out_h, out_n, v_b, v_h, v_n,
         D: tl.constexpr, DVR: tl.constexpr, DV: tl.constexpr, ORDER: tl.constexpr, ROWS: tl.constexpr, SQUARE: tl.constexpr,
         COLUMN: tl.constexpr, B: tl.constexpr, U: tl.constexpr,
         BT: tl.constexpr, BS: tl.constexpr, GROUPS: tl.constexpr, CAUSAL: tl.constexpr, REVERSE: tl.constexpr,
         FORWARD: tl.constexpr, STATE: tl.constexpr, DENSE: tl.constexpr, HAS_IN: tl.constexpr, PACKED: tl.constexpr,
         MASKED: tl.constexpr, DECAY: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """Read for X (B, row heads, tokens, D) and Y (B, column heads, tokens_y, D); A, A1: the columns' values, last channel."""
    PAIRS: tl.constexpr = ROWS - D
    DT: tl.constexpr = X.dtype.element_ty
    i, b, lo, n, t0 = tile_of_rows(OWNER, FIRST, CU, start, length, per_sequence, BT, PACKED)
    if t0 >= n:
        return
    _, lo_y, n_y = sequence(CU_Y, i, start, length_y, PACKED)
    h, hk, heads_y, row, fade_row = head_of_rows(b, lo, tokens, tokens_y, key_heads, GROUPS, FORWARD)
    od, ov, os = tl.arange(0, D), tl.arange(0, DV), tl.arange(0, BS)
    t = t0 + tl.arange(0, BT)
    mt = t < n
    acc = tl.zeros((BT, DV), dtype=tl.float32)
    g = tl.zeros((BT,), dtype=tl.float32)
    if STATE:
        slot, reads = slot_of_rows(CHUNKS, i, t0, chunk, CAUSAL, REVERSE, HAS_IN)
        if reads:
            own = wide(i) * key_heads + hk
            state = S + (wide(slot) * key_heads + hk) * ROWS * DV
            z = Z + (wide(slot) * key_heads + hk) * COLUMN
            x = X_STATE + (row + t)[:, None] * D
            xs = tl.load(x + od[None, :], mask=mt[:, None], other=0.0)
            wide_x = xs.to(tl.float32)
            acc = tl.dot(xs, tl.load(state + PAIRS * DV + od[:, None] * DV + ov[None, :]), input_precision=PRECISION)
            if FORWARD:
                near = tl.sum(wide_x * tl.load(CENTRE + own * D + od)[None, :], 1)
                f0, f1 = weight(near, ORDER), weight(near, ORDER - 1)
            else:
                f0, f1 = tl.full((BT,), 1.0, dtype=tl.float32), tl.full((BT,), 1.0, dtype=tl.float32)
            acc = acc * f1[:, None] + f0[:, None] * tl.load(z + SQUARE + D + ov)[None, :]
            if FORWARD or DECAY:
                g = f0 * tl.load(z + SQUARE + D + DV)
                g += f1 * tl.sum(wide_x * tl.load(z + SQUARE + od)[None, :], 1)
                if ORDER == 2:
                    ob = tl.arange(0, 16)
                    for block in range(D // 16):
                        square = tl.load(z + od[:, None] * D + (block * 16 + ob)[None, :])
                        if DT == tl.float32:
                            zx = tl.dot(xs, square, input_precision=PRECISION)
                        else:
                            high, low = split(square, DT)
                            zx = tl.dot(xs, high, input_precision=PRECISION)
                            zx = tl.dot(xs, low, zx, input_precision=PRECISION)
                        xb = tl.load(x + (block * 16 + ob)[None, :], mask=mt[:, None], other=0.0)
                        g += 0.5 * tl.sum(xb.to(tl.float32) * zx, 1)
            if ORDER == 2:
                ol = tl.arange(0, B)
                I, J, m = 0, 0, 0
                if D == B:
                    xj = (wide_x * 0.5).to(DT)
                for _ in range(PAIRS // (B * U)):
                    if D > B:
                        # a block with itself holds x_m x_l and x_l x_m
                        xj = tl.load(x + (J * B + ol)[None, :], mask=mt[:, None], other=0.0)
                        half = tl.where(I == J, 0.5, 1.0).to(DT)
                    for u in tl.static_range(U):
                        xm = tl.load(X_STATE + (row + t) * D + (I * B + m + u), mask=mt, other=0.0)
                        if D > B:
                            xm *= half
                        rows = tl.load(state + (u * B + ol)[:, None] * DV + ov[None, :])
                        acc = tl.dot(xj * xm[:, None], rows, acc, input_precision=PRECISION)
                    state += U * B * DV
                    m += U  # then the next J of this I, then the next I
                    pair_done = m == B
                    all_done = pair_done & (J == I)
                    m = tl.where(pair_done, 0, m)
                    J = tl.where(all_done, 0, tl.where(pair_done, J + 1, J))
                    I = tl.where(all_done, I + 1, I)
            if DECAY:
                fade = tl.load(FADE + fade_row + t, mask=mt, other=0.0)
                acc *= fade[:, None]
                g *= fade
            cv = tl.load(CENTRE_V + own * DV + ov)[None, :]
            if FORWARD:  # from v - c_v, or from its gradient, to that of v
                acc += g[:, None] * cv
            else:
                g -= tl.sum(acc * cv, 1)
    if DENSE:
        xt = tl.load(X + (row + t)[:, None] * D + od[None, :], mask=mt[:, None], other=0.0)
        begin, end = seen(t0, chunk, n_y, BT, BS, CAUSAL, REVERSE)
        for head in range(hk if FORWARD else h * GROUPS, hk + 1 if FORWARD else (h + 1) * GROUPS):
            row_y = (wide(b) * heads_y + head) * tokens_y + lo_y
            a = A + wide(b) * a_b + wide(head) * a_h + wide(lo_y) * a_n
            for s0 in range(begin, end, BS):
                s = s0 + os
                ms = s < n_y
                y = tl.load(Y + (row_y + s0) * D + (os[None, :] * D + od[:, None]), mask=ms[None, :], other=0.0)
                keep = ms
                if FORWARD and MASKED:
                    keep = ms & (tl.load(A1 + row_y + s, mask=ms, other=0.0) != 0.0)
                place = a + wide(s0) * a_n + (os[:, None] * a_n + ov[None, :])
                values = tl.load(place, mask=keep[:, None] & (ov < DVR)[None, :], other=0.0)
                p = weight(tl.dot(xt, y, input_precision=PRECISION), ORDER)
                if DECAY:
                    p *= faded(HIGH, LOW, fade_row, t, s, mt, ms, REVERSE)
                visible = keep[None, :] & mt[:, None]
                if CAUSAL:
                    visible = visible & ((s[None, :] >= t[:, None]) if REVERSE else (s[None, :] <= t[:, None]))
                p = tl.where(visible, p, 0.0)
                if FORWARD:
                    g += tl.sum(p, 1)
                elif DECAY:
                    g += tl.sum(p * tl.load(A1 + row_y + s, mask=ms, other=0.0)[None, :], 1)
                acc = tl.dot(p.to(DT), values.to(DT), acc, input_precision=PRECISION)
    if FORWARD:
        acc = tl.where((g != 0.0)[:, None], acc / tl.where(g != 0.0, g, 1.0)[:, None], 0.0)
        tl.store(G + row + t, g, mask=mt)
    else:
        keep = mt
        if MASKED:
            keep = mt & (tl.load(MASK + row + t, mask=mt, other=0.0) != 0.0)
            acc = tl.where(keep[:, None], acc, 0.0)
        if DECAY:  # the share of a key in the gradient of c, with all channels of [v, 1]
            own_values = V + wide(b) * v_b + wide(h) * v_h + wide(lo + t)[:, None] * v_n + ov[None, :]
            v = tl.load(own_values, mask=keep[:, None] & (ov < DVR)[None, :], other=0.0).to(tl.float32)
            tl.store(DC + row + t, tl.where(keep, -tl.sum(v * acc, 1) - g, 0.0), mask=mt)
    out = OUT + wide(b) * out_b + wide(h) * out_h + wide(lo + t)[:, None] * out_n + ov[None, :]
    tl.store(out, acc.to(OUT.dtype.element_ty), mask=mt[:, None] & (ov < DVR)[None, :])
