"""The kernel `read`: rows read the state before their chunk, S^T phi(x), and see the columns of their chunk densely.

    FORWARD   rows are queries, columns are keys with their values: o and g
    else      rows are keys, columns are queries with w, the state is T: the gradient of the values (and, with DECAY, of c)

Schedule: a program takes BT rows of one head. It loops over the blocks J of B channels, whose x_J it loads once, and for each over
the channels m from J on, U at a time: the features x_m x_J, BT x U B, times as many rows of the state are one product on the
tensor cores. They pass through shared memory on the way, and so does the state. Then it loops over the columns it sees, BS
at a time.

The sums are about the centre c of the keys. With b = q . c queries multiply them by f(b), f'(b) and 1, by degree; keys read with
k - c (X_STATE) what queries have multiplied. The denominator is read in two products, of the high and the low halves of its column.
"""

import triton
import triton.language as tl

from fastmax.backends.triton.kernels.common import (
    faded,
    head_of_rows,
    narrowed,
    seen,
    sequence,
    slot_of_rows,
    split,
    stride,
    tile_of_rows,
    weight,
    wide,
    widened,
)  # fmt: skip


@triton.jit(
    do_not_specialize=[
        "tokens", "tokens_y", "start", "length", "length_y", "per_sequence", "count", "chunk", "chunks", "key_heads",
        "out_b", "out_h", "out_n",
    ]
)  # fmt: skip
def read(X, X_STATE, Y, A, A1, CENTRE, CENTRE_V, S, Z, FADE, HIGH, LOW, OUT, G, V, COUNTS, DC, CU, CU_Y,
         tokens, tokens_y, start, length, length_y, per_sequence, count, chunk, chunks, key_heads, out_b, out_h, out_n,
         D: tl.constexpr, DVR: tl.constexpr, DV: tl.constexpr, ORDER: tl.constexpr, ROWS: tl.constexpr, SQUARE: tl.constexpr,
         SIZE: tl.constexpr, B: tl.constexpr, U: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr, GROUPS: tl.constexpr,
         CAUSAL: tl.constexpr, REVERSE: tl.constexpr, FORWARD: tl.constexpr, STATE: tl.constexpr, PREFIX: tl.constexpr,
         DENSE: tl.constexpr, HAS_IN: tl.constexpr, PACKED: tl.constexpr, MASKED: tl.constexpr, DECAY: tl.constexpr,
         PRECISION: tl.constexpr, EMULATED: tl.constexpr, ALIGNED: tl.constexpr):  # fmt: skip
    """Read for X (B, row heads, tokens, D) and Y (B, column heads, tokens_y, D); A (.., DV), A1: the columns' values, last channel."""
    PAIRS: tl.constexpr = ROWS - D
    COLUMN: tl.constexpr = SIZE - ROWS * DV
    DT: tl.constexpr = X.dtype.element_ty
    i, b, lo, n, t0 = tile_of_rows(CU, start, length, per_sequence, count, BT, PACKED)
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
        slot, reads = slot_of_rows(CU, CU_Y, i, t0, n, n_y, chunk, chunks, PREFIX, REVERSE, HAS_IN, PACKED)
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
                ol, ou, of = tl.arange(0, B), tl.arange(0, U), tl.arange(0, U * B)
                for J in tl.static_range(D // B):
                    xj = widened(tl.load(x + (J * B + ol)[None, :], mask=mt[:, None], other=0.0), EMULATED)
                    for m in range(J * B, D, U):
                        I = m // B
                        # a block with itself holds x_m x_l and x_l x_m
                        half = tl.where(I == J, 0.5, 1.0).to(xj.dtype)
                        row_of_pair = (I * (I + 1) // 2 + J) * B * B + m % B * B
                        if EMULATED:  # a tile of x_m would take more instructions to spread than its products
                            for u in tl.static_range(U):
                                xm = (
                                    widened(tl.load(X_STATE + (row + t) * D + m + u, mask=mt, other=0.0), EMULATED)
                                    * half
                                )
                                rows = tl.load(state + (row_of_pair + u * B + ol)[:, None] * DV + ov[None, :])
                                phi = narrowed(xj * xm[:, None], DT, EMULATED)
                                acc = tl.dot(phi, rows, acc, input_precision=PRECISION)
                        else:
                            xm = tl.load(x + (m + ou)[None, :], mask=mt[:, None], other=0.0) * half
                            phi = tl.reshape(xm[:, :, None] * xj[:, None, :], (BT, U * B))
                            rows = tl.load(state + (row_of_pair + of)[:, None] * DV + ov[None, :])
                            acc = tl.dot(phi, rows, acc, input_precision=PRECISION)
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
            for s0 in range(begin, end, BS):
                s = s0 + os
                ms = s < n_y
                y = tl.load(Y + (row_y + s0) * D + (os[None, :] * D + od[:, None]), mask=ms[None, :], other=0.0)
                keep = ms
                if FORWARD and MASKED:
                    keep = ms & (tl.load(A1 + row_y + s, mask=ms, other=0.0) != 0.0)
                values = tl.load(A + (row_y + s0) * DV + (os[:, None] * DV + ov[None, :]), mask=ms[:, None], other=0.0)
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
                acc = tl.dot(p.to(DT), values, acc, input_precision=PRECISION)
    if FORWARD:
        acc = tl.where((g != 0.0)[:, None], acc / tl.where(g != 0.0, g, 1.0)[:, None], 0.0)
        tl.store(G + row + t, g, mask=mt)
    else:
        if MASKED:
            keep = tl.load(COUNTS + row + t, mask=mt, other=0.0) != 0.0
            acc, g = tl.where(keep[:, None], acc, 0.0), tl.where(keep, g, 0.0)
        if DECAY:  # the share of a key in the gradient of c, with all channels of [v, 1]
            v = tl.load(V + (row + t)[:, None] * DV + ov[None, :], mask=mt[:, None], other=0.0).to(tl.float32)
            tl.store(DC + row + t, -tl.sum(v * acc, 1) - g, mask=mt)
    out = OUT + wide(b) * stride(out_b, ALIGNED) + wide(h) * stride(out_h, ALIGNED)
    out += wide(lo + t)[:, None] * stride(out_n, ALIGNED) + ov[None, :]
    tl.store(out, acc.to(OUT.dtype.element_ty), mask=mt[:, None] & (ov < DVR)[None, :])
