"""The kernel `accumulate`: S = sum phi(k) u^T before each chunk of keys, and T = sum phi(q) w^T after each chunk of queries.

Schedule: a program owns some rows of the state of one sequence and key head, keeps them in fp32 registers, and walks the chunks
in order (REVERSE: from the last to the first). Before each chunk it stores what it has, in the dtype of the products. So the
sum over a prefix needs no separate pass, every number is added by one program in one order, and the bits are the same every
time. There are three kinds of programs:

    pairs         G * B rows x_m x_l of one pair I >= J of blocks of B channels: row = pair * B * B + (m % B) * B + l % B
    linear        the D rows x_m, behind those of the pairs, and the row of the constant, in Z
    denominator   B rows m of the last column, in Z: D * D sums x_m x_l u1, D sums x_m u1, (the constant row,) sum of u1

Keys and values come about their centres; queries add f(b), f'(b) and 1 times their values to the sums of degree 0, 1 and 2 (F0, F1).
Forgetting is in the values that a token adds, and is a factor on the whole sum per chunk (FADE_SLOT). Queries of the heads that share a key head are more steps of the same sum.
"""

import triton
import triton.language as tl

from fastmax.backends.triton.kernels.common import sequence, split, wide


@triton.jit(do_not_specialize=["tokens", "start", "length", "chunk", "key_heads"])
def accumulate(X, A, A1, F0, F1, FADE_SLOT, S, Z, S_IN, Z_IN, S_OUT, Z_OUT, CU, CHUNKS,
               tokens, start, length, chunk, key_heads,
               D: tl.constexpr, DV: tl.constexpr, ORDER: tl.constexpr, ROWS: tl.constexpr, SQUARE: tl.constexpr,
               COLUMN: tl.constexpr, B: tl.constexpr, G: tl.constexpr, BT: tl.constexpr,
               GROUPS: tl.constexpr, REVERSE: tl.constexpr, PACKED: tl.constexpr, DECAY: tl.constexpr,
               STORE: tl.constexpr, HAS_IN: tl.constexpr, HAS_OUT: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """Sum X (B, key_heads * GROUPS, tokens, D) times A (.., DV) and A1 (..), fp32, over the chunks of each sequence.

    A and A1 are zeros where a token does not count. Chunk c of sequence i is slot CHUNKS[i] + c.

    STORE: S and Z get the sums of each slot. The sums start from S_IN, Z_IN (HAS_IN) and end in S_OUT, Z_OUT (HAS_OUT), one
    slot per sequence, in fp32.
    """
    PAIRS: tl.constexpr = ROWS - D
    PER_PAIR: tl.constexpr = B // G
    OF_PAIRS: tl.constexpr = PAIRS // (B * G)
    KINDS: tl.constexpr = OF_PAIRS + 1 + D // B
    DT: tl.constexpr = X.dtype.element_ty
    part, own = tl.program_id(0) % KINDS, tl.program_id(0) // KINDS
    i, h = own // key_heads, own % key_heads
    b, lo, n = sequence(CU, i, start, length, PACKED)
    slot, end = tl.load(CHUNKS + i), tl.load(CHUNKS + i + 1)
    if not HAS_IN and not HAS_OUT:
        if end - slot <= 1:  # a sequence of one chunk sees itself densely: its state is not read
            return
    heads = key_heads * GROUPS
    own = wide(own)
    od, ov, ot = tl.arange(0, D), tl.arange(0, DV), tl.arange(0, BT)
    if part < OF_PAIRS:
        I = 0
        while part // PER_PAIR >= (I + 1) * (I + 2) // 2:
            I += 1
        J = part // PER_PAIR - I * (I + 1) // 2
        m, l = I * B + (part % PER_PAIR) * G + tl.arange(0, G), J * B + tl.arange(0, B)
        tile = part * G * B * DV + tl.arange(0, G * B)[:, None] * DV + ov[None, :]
        sums = tl.zeros((G * B, DV), dtype=tl.float32)
        if HAS_IN:
            sums += tl.load(S_IN + own * ROWS * DV + tile)
        for count in range(end - slot):
            c = end - slot - 1 - count if REVERSE else count
            if STORE:
                tl.store(S + (wide(slot + c) * key_heads + h) * ROWS * DV + tile, sums.to(DT))
            if DECAY:
                sums *= tl.load(FADE_SLOT + wide(slot + c) * key_heads + h)
            for head in range(h * GROUPS, (h + 1) * GROUPS):
                row = (wide(b) * heads + head) * tokens + lo
                for t0 in range(c * chunk, tl.minimum((c + 1) * chunk, n), BT):
                    x = X + (row + t0) * D
                    xm = tl.load(x + (m[:, None] + ot[None, :] * D), mask=(t0 + ot < n)[None, :], other=0.0)
                    if G == D:  # the only program with pairs has them all
                        xl = xm
                    else:
                        xl = tl.load(x + (l[:, None] + ot[None, :] * D), mask=(t0 + ot < n)[None, :], other=0.0)
                    a = A + (row + t0) * DV + (ot[:, None] * DV + ov[None, :])
                    values = tl.load(a, mask=(t0 + ot < n)[:, None], other=0.0)
                    phi = tl.reshape(xm[:, None, :] * xl[None, :, :], (G * B, BT))
                    sums = tl.dot(phi, values, sums, input_precision=PRECISION)
        if HAS_OUT:
            tl.store(S_OUT + own * ROWS * DV + tile, sums)
    elif part == OF_PAIRS:
        linear = tl.zeros((D, DV), dtype=tl.float32)
        constant = tl.zeros((DV,), dtype=tl.float32)
        below_pairs = PAIRS * DV + od[:, None] * DV + ov[None, :]
        if HAS_IN:
            linear += tl.load(S_IN + own * ROWS * DV + below_pairs)
            constant += tl.load(Z_IN + own * COLUMN + SQUARE + D + ov)
        for count in range(end - slot):
            c = end - slot - 1 - count if REVERSE else count
            if STORE:
                tl.store(S + (wide(slot + c) * key_heads + h) * ROWS * DV + below_pairs, linear.to(DT))
                tl.store(Z + (wide(slot + c) * key_heads + h) * COLUMN + SQUARE + D + ov, constant)
            if DECAY:
                fade = tl.load(FADE_SLOT + wide(slot + c) * key_heads + h)
                linear *= fade
                constant *= fade
            for head in range(h * GROUPS, (h + 1) * GROUPS):
                row = (wide(b) * heads + head) * tokens + lo
                for t0 in range(c * chunk, tl.minimum((c + 1) * chunk, n), BT):
                    x = X + (row + t0) * D + (od[:, None] + ot[None, :] * D)
                    x = tl.load(x, mask=(t0 + ot < n)[None, :], other=0.0)
                    a = A + (row + t0) * DV + (ot[:, None] * DV + ov[None, :])
                    values = tl.load(a, mask=(t0 + ot < n)[:, None], other=0.0)
                    if REVERSE:
                        f0 = tl.load(F0 + row + t0 + ot, mask=t0 + ot < n, other=0.0)
                        f1 = tl.load(F1 + row + t0 + ot, mask=t0 + ot < n, other=0.0)
                        constant += tl.sum(values.to(tl.float32) * f0[:, None], 0)
                        values = (values.to(tl.float32) * f1[:, None]).to(DT)
                    else:
                        constant += tl.sum(values.to(tl.float32), 0)
                    linear = tl.dot(x, values, linear, input_precision=PRECISION)
        if HAS_OUT:
            tl.store(S_OUT + own * ROWS * DV + below_pairs, linear)
            tl.store(Z_OUT + own * COLUMN + SQUARE + D + ov, constant)
    else:
        block = (part - OF_PAIRS - 1) * B + tl.arange(0, B)
        square = tl.zeros((B, D), dtype=tl.float32)
        column = tl.zeros((B,), dtype=tl.float32)
        number = tl.zeros((), dtype=tl.float32)
        grid = block[:, None] * D + od[None, :]
        if HAS_IN:
            if ORDER == 2:
                square += tl.load(Z_IN + own * COLUMN + grid)
            column += tl.load(Z_IN + own * COLUMN + SQUARE + block)
            number += tl.load(Z_IN + own * COLUMN + SQUARE + D + DV)
        for count in range(end - slot):
            c = end - slot - 1 - count if REVERSE else count
            if STORE:
                z = Z + (wide(slot + c) * key_heads + h) * COLUMN
                if ORDER == 2:
                    tl.store(z + grid, square)
                tl.store(z + SQUARE + block, column)
                tl.store(z + SQUARE + D + DV, number)
            if DECAY:
                fade = tl.load(FADE_SLOT + wide(slot + c) * key_heads + h)
                square *= fade
                column *= fade
                number *= fade
            for head in range(h * GROUPS, (h + 1) * GROUPS):
                row = (wide(b) * heads + head) * tokens + lo
                for t0 in range(c * chunk, tl.minimum((c + 1) * chunk, n), BT):
                    mt = t0 + ot < n
                    a1 = tl.load(A1 + row + t0 + ot, mask=mt, other=0.0)
                    x = X + (row + t0) * D
                    xb = tl.load(x + (block[:, None] + ot[None, :] * D), mask=mt[None, :], other=0.0)
                    weighted = xb.to(tl.float32) * a1[None, :]
                    if ORDER == 2:
                        xl = tl.load(x + (ot[:, None] * D + od[None, :]), mask=mt[:, None], other=0.0)
                        if DT == tl.float32:
                            square = tl.dot(weighted, xl, square, input_precision=PRECISION)
                        else:
                            high, low = split(weighted, DT)
                            square = tl.dot(high, xl, square, input_precision=PRECISION)
                            if REVERSE or DECAY:  # else a1 is 0 or 1 and nothing is left
                                square = tl.dot(low, xl, square, input_precision=PRECISION)
                    if REVERSE:
                        column += tl.sum(weighted * tl.load(F1 + row + t0 + ot, mask=mt, other=0.0)[None, :], 1)
                        number += tl.sum(a1 * tl.load(F0 + row + t0 + ot, mask=mt, other=0.0), 0)
                    else:
                        column += tl.sum(weighted, 1)
                        number += tl.sum(a1, 0)
        if HAS_OUT:
            if ORDER == 2:
                tl.store(Z_OUT + own * COLUMN + grid, square)
            tl.store(Z_OUT + own * COLUMN + SQUARE + block, column)
            tl.store(Z_OUT + own * COLUMN + SQUARE + D + DV, number)
