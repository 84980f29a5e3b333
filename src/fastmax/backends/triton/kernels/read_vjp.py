"""The kernel `read_vjp`: the gradient of rows from that of what they read, J_phi(x)^T S a, and of what they saw densely.

    QUERIES   rows are queries with a = w, columns are keys with their values, the state is S: dq
    else      rows are keys with a = [v, 1], columns are queries with w, the state is T: dk

Schedule: a program takes BT rows of one head. First what has degree one, BV value channels at a time, so that few registers are
held; then the denominator's part. Then for each channel m, U of them in a step, one product of x_m a, BT x DV, with the D rows
S[m, :] of the state; what is stored as the pair (l, m) is read from there. Then it loops over the columns it sees, BS at a time.
It ends with the gradient through the scale and the normalization, from the raw tokens. With sums about the centre c of the keys
and b = q . c:

    dq = f'(b) S1 a + S2 a q + c (f'(b) S0 a + q . S1 a)        dk = T1 a + T2 a (k - c)

No result of a product is transposed: the gradient of keys is computed with the roles exchanged.
"""

import triton
import triton.language as tl

from fastmax.backends.triton.kernels.common import (
    faded,
    head_of_rows,
    narrowed,
    normalize_rows,
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
        "raw_b", "raw_h", "raw_n", "dx_b", "dx_h", "dx_n", "scale",
    ]
)  # fmt: skip
def read_vjp(X, X_STATE, A, A1, A_STATE, A1_STATE, Y, A_Y, A1_Y, CENTRE, S, Z, HIGH, LOW, RAW, HEAD_SCALE, DX, D_SCALE, CU, CU_Y,
             tokens, tokens_y, start, length, length_y, per_sequence, count, chunk, chunks, key_heads,
             raw_b, raw_h, raw_n, dx_b, dx_h, dx_n, scale,
             DR: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, ORDER: tl.constexpr, ROWS: tl.constexpr,
             SQUARE: tl.constexpr, SIZE: tl.constexpr, B: tl.constexpr, U: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr,
             GROUPS: tl.constexpr, CAUSAL: tl.constexpr, REVERSE: tl.constexpr, QUERIES: tl.constexpr, STATE: tl.constexpr,
             PREFIX: tl.constexpr, DENSE: tl.constexpr, HAS_IN: tl.constexpr, PACKED: tl.constexpr, MASKED: tl.constexpr,
             DECAY: tl.constexpr, SCALED: tl.constexpr, NORM: tl.constexpr, EPS: tl.constexpr, PRECISION: tl.constexpr,
             EMULATED: tl.constexpr, ALIGNED: tl.constexpr):  # fmt: skip
    """Differentiate `read`, with its X and Y; A, A1 are the rows' values and last channel, A_Y, A1_Y those of the columns.

    X_STATE, A_STATE, A1_STATE are those of the rows as the state has them: of keys centred, and faded. The last channel of keys is
    ones and not loaded, but for MASKED ones and, in states, with DECAY.
    """
    PAIRS: tl.constexpr = ROWS - D
    COLUMN: tl.constexpr = SIZE - ROWS * DV
    BV: tl.constexpr = min(DV, 32)
    DT: tl.constexpr = X.dtype.element_ty
    i, b, lo, n, t0 = tile_of_rows(CU, start, length, per_sequence, count, BT, PACKED)
    if t0 >= n:
        return
    _, lo_y, n_y = sequence(CU_Y, i, start, length_y, PACKED)
    h, hk, heads_y, row, fade_row = head_of_rows(b, lo, tokens, tokens_y, key_heads, GROUPS, QUERIES)
    od, ov, os = tl.arange(0, D), tl.arange(0, DV), tl.arange(0, BS)
    t = t0 + tl.arange(0, BT)
    mt = t < n
    a1 = tl.load(A1 + row + t, mask=mt, other=0.0) if QUERIES or MASKED else mt.to(tl.float32)
    keep = mt if QUERIES or not MASKED else mt & (a1 != 0.0)
    acc = tl.zeros((BT, D), dtype=tl.float32)
    if STATE:
        slot, reads = slot_of_rows(CU, CU_Y, i, t0, n, n_y, chunk, chunks, PREFIX, REVERSE, HAS_IN, PACKED)
        if reads:
            own = wide(i) * key_heads + hk
            state = S + (wide(slot) * key_heads + hk) * ROWS * DV
            z = Z + (wide(slot) * key_heads + hk) * COLUMN
            last = tl.load(A1_STATE + row + t, mask=mt, other=0.0) if QUERIES or MASKED or DECAY else mt.to(tl.float32)
            a_rows = A_STATE + (row + t)[:, None] * DV
            x = X_STATE + (row + t)[:, None] * D
            constant = tl.zeros((BT,), dtype=tl.float32)
            oc = tl.arange(0, BV)
            for c0 in range(0, DV, BV):
                a = tl.load(a_rows + (c0 + oc)[None, :], mask=mt[:, None], other=0.0)
                linear = tl.load(state + PAIRS * DV + od[None, :] * DV + (c0 + oc)[:, None])
                acc = tl.dot(a, linear, acc, input_precision=PRECISION)
                if QUERIES:
                    constant += tl.sum(a.to(tl.float32) * tl.load(z + SQUARE + D + c0 + oc)[None, :], 1)
            acc += last[:, None] * tl.load(z + SQUARE + od)[None, :]
            if QUERIES:
                centre = tl.load(CENTRE + own * D + od)[None, :]
                constant += last * tl.load(z + SQUARE + D + DV)
                if ORDER == 2:
                    xs = tl.load(x + od[None, :], mask=mt[:, None], other=0.0).to(tl.float32)
                    near = 1.0 + tl.sum(xs * centre, 1)
                    constant = near * constant + tl.sum(xs * acc, 1)
                    acc *= near[:, None]
                acc += constant[:, None] * centre
            if ORDER == 2:
                ob = tl.arange(0, 16)
                for block in range(D // 16):  # the denominator's part, of the high and low halves of both factors
                    xb = (
                        tl.load(x + (block * 16 + ob)[None, :], mask=mt[:, None], other=0.0).to(tl.float32)
                        * last[:, None]
                    )
                    square = tl.load(z + (block * 16 + ob)[:, None] * D + od[None, :])
                    if DT == tl.float32:
                        acc = tl.dot(xb, square, acc, input_precision=PRECISION)
                    else:
                        x_high, x_low = split(xb, DT)
                        high, low = split(square, DT)
                        acc = tl.dot(x_high, high, acc, input_precision=PRECISION)
                        acc = tl.dot(x_low, high, acc, input_precision=PRECISION)
                        acc = tl.dot(x_high, low, acc, input_precision=PRECISION)
                a = widened(tl.load(a_rows + ov[None, :], mask=mt[:, None], other=0.0), EMULATED)
                J = od // B
                for m0 in range(0, DR, U):
                    for u in tl.static_range(U):
                        m = m0 + u
                        if D == B:
                            rows = m * B + od
                        else:
                            I = m // B
                            below = I >= J  # stored as (m, l), else as (l, m)
                            pair = tl.where(below, I * (I + 1) // 2 + J, J * (J + 1) // 2 + I)
                            rows = pair * B * B + tl.where(below, (m % B) * B + od % B, (od % B) * B + m % B)
                        xm = widened(tl.load(X_STATE + (row + t) * D + m, mask=mt, other=0.0), EMULATED)
                        part = tl.load(state + rows[None, :] * DV + ov[:, None])
                        acc = tl.dot(narrowed(a * xm[:, None], DT, EMULATED), part, acc, input_precision=PRECISION)
    if DENSE:
        xt = tl.load(X + (row + t)[:, None] * D + od[None, :], mask=mt[:, None], other=0.0)
        a = tl.load(A + (row + t)[:, None] * DV + ov[None, :], mask=mt[:, None], other=0.0)
        begin, end = seen(t0, chunk, n_y, BT, BS, CAUSAL, REVERSE)
        for head in range(hk if QUERIES else h * GROUPS, hk + 1 if QUERIES else (h + 1) * GROUPS):
            row_y = (wide(b) * heads_y + head) * tokens_y + lo_y
            for s0 in range(begin, end, BS):
                s = s0 + os
                ms = s < n_y
                a1_y = ms.to(tl.float32) if QUERIES and not MASKED else tl.load(A1_Y + row_y + s, mask=ms, other=0.0)
                counts = ms & (a1_y != 0.0) if QUERIES and MASKED else ms
                y = tl.load(Y + (row_y + s0) * D + (os[:, None] * D + od[None, :]), mask=ms[:, None], other=0.0)
                place_y = A_Y + (row_y + s0) * DV + (os[None, :] * DV + ov[:, None])
                seen_values = tl.load(place_y, mask=ms[None, :], other=0.0)
                ds = tl.dot(a, seen_values, input_precision=PRECISION) + a1[:, None] * a1_y[None, :]
                ds *= weight(tl.dot(xt, tl.trans(y), input_precision=PRECISION), ORDER - 1)
                if DECAY:
                    ds *= faded(HIGH, LOW, fade_row, t, s, mt, ms, REVERSE)
                visible = counts[None, :] & mt[:, None]
                if CAUSAL:
                    visible = visible & ((s[None, :] >= t[:, None]) if REVERSE else (s[None, :] <= t[:, None]))
                acc = tl.dot(tl.where(visible, ds, 0.0).to(DT), y, acc, input_precision=PRECISION)
    channels = od < DR
    d = tl.where(channels[None, :], acc, 0.0) * scale
    raw = RAW + wide(b) * stride(raw_b, ALIGNED) + wide(h) * stride(raw_h, ALIGNED)
    raw += wide(lo + t)[:, None] * stride(raw_n, ALIGNED) + od[None, :]
    if SCALED or NORM != "none":
        hat = tl.load(raw, mask=keep[:, None] & channels[None, :], other=0.0).to(tl.float32)
        hat, r = normalize_rows(hat, channels, DR, NORM, EPS)
        if SCALED:
            tl.store(D_SCALE + row + t, tl.sum(d * hat, 1), mask=mt)
            d *= tl.load(HEAD_SCALE + h)
        if NORM == "standardize":
            d -= tl.sum(d, 1)[:, None] / DR
        if NORM != "none":
            d = r[:, None] * (d - hat * (tl.sum(d * hat, 1) / DR)[:, None])
    out = DX + wide(b) * stride(dx_b, ALIGNED) + wide(h) * stride(dx_h, ALIGNED)
    out += wide(lo + t)[:, None] * stride(dx_n, ALIGNED) + od[None, :]
    tl.store(out, tl.where(keep[:, None], d, 0.0).to(DX.dtype.element_ty), mask=mt[:, None] & channels[None, :])
