"""The kernel `accumulate`: the sums phi(k) u^T of each piece of keys, and phi(q) w^T of each piece of queries.

Schedule: a program owns some rows of the sums of one piece and key head, keeps them in fp32 registers, walks the tokens and stores
them. `scan` adds the pieces up. So the grid fills a GPU at any number of heads, an accumulator of the tensor cores, which
truncates, takes no more than a chunk of tokens, and every number is added by one program in one order: the bits are the same
every time. There are three kinds of programs:

    pairs         G * B rows x_m x_l of one pair I >= J of blocks of B channels: row = pair * B * B + (m % B) * B + l % B
    linear        the D rows x_m, behind those of the pairs, and the row of the constant, in the column
    denominator   B rows m of the last column: D * D sums x_m x_l u1, D sums x_m u1, (the constant row,) sum of u1

Keys and values come about their centres; queries add f(b), f'(b) and 1 times their values to the sums of degree 0, 1 and 2 (F0, F1).
Forgetting is in the values that a token adds. Queries of the heads that share a key head are more steps of the same sum.
"""

import triton
import triton.language as tl

from fastmax.backends.triton.kernels.common import narrowed, piece_of_both, sequence, split, wide, widened


@triton.jit(
    do_not_specialize=["tokens", "start", "length", "size", "renewal", "per_sequence", "count", "key_heads", "longest"]
)
def accumulate(X, A, A1, F0, F1, SUMS, CU, CU_Y, tokens, start, length, longest, size, renewal, per_sequence, count, key_heads,
               D: tl.constexpr, DV: tl.constexpr, ORDER: tl.constexpr, ROWS: tl.constexpr, SQUARE: tl.constexpr,
               SIZE: tl.constexpr, B: tl.constexpr, G: tl.constexpr, BT: tl.constexpr, GROUPS: tl.constexpr,
               REVERSE: tl.constexpr, PACKED: tl.constexpr, WEIGHTED: tl.constexpr, SKIP: tl.constexpr, RENEW: tl.constexpr,
               PRECISION: tl.constexpr, EMULATED: tl.constexpr):  # fmt: skip
    """Sum X (B, key_heads * GROUPS, tokens, D) times A (.., DV) and A1 (..), fp32, into SUMS (pieces, key_heads, SIZE), fp32.

    A and A1 are zeros where a token does not count; without WEIGHTED A1 is ones. SKIP: nothing reads the last piece (REVERSE: the
    first) of a sequence. RENEW: an accumulator takes `renewal` tokens of a piece.
    """
    PAIRS: tl.constexpr = ROWS - D
    PER_PAIR: tl.constexpr = B // G
    OF_PAIRS: tl.constexpr = PAIRS // (B * G)
    KINDS: tl.constexpr = OF_PAIRS + 1 + D // B
    DT: tl.constexpr = X.dtype.element_ty
    part, piece, h = tl.program_id(0) % KINDS, tl.program_id(0) // KINDS, tl.program_id(1)
    i, c = piece_of_both(CU, CU_Y, piece, size, per_sequence, count, PACKED)
    b, lo, n = sequence(CU, i, start, length, PACKED)
    if PACKED:
        longest = tl.maximum(n, tl.load(CU_Y + i + 1) - tl.load(CU_Y + i))
    if c * size >= longest:
        return
    if SKIP:
        if c == 0 if REVERSE else (c + 1) * size >= longest:
            return
    begin, end = c * size, tl.minimum((c + 1) * size, n)
    heads = key_heads * GROUPS
    sums_of_piece = SUMS + (wide(piece) * key_heads + h) * SIZE
    od, ov, ot = tl.arange(0, D), tl.arange(0, DV), tl.arange(0, BT)
    if part < OF_PAIRS:
        I = 0
        while part // PER_PAIR >= (I + 1) * (I + 2) // 2:
            I += 1
        J = part // PER_PAIR - I * (I + 1) // 2
        m, l = I * B + (part % PER_PAIR) * G + tl.arange(0, G), J * B + tl.arange(0, B)
        sums = tl.zeros((G * B, DV), dtype=tl.float32)
        for head in range(h * GROUPS, (h + 1) * GROUPS):
            row = (wide(b) * heads + head) * tokens + lo
            for first in range(begin, end, renewal if RENEW else size):
                fresh = tl.zeros((G * B, DV), dtype=tl.float32) if RENEW else sums
                for t0 in range(first, tl.minimum(first + renewal, end) if RENEW else end, BT):
                    x = X + (row + t0) * D
                    xm = tl.load(x + (m[:, None] + ot[None, :] * D), mask=(t0 + ot < end)[None, :], other=0.0)
                    if G == D:  # the only program with pairs has them all
                        xl = xm
                    else:
                        xl = tl.load(x + (l[:, None] + ot[None, :] * D), mask=(t0 + ot < end)[None, :], other=0.0)
                    a = A + (row + t0) * DV + (ot[:, None] * DV + ov[None, :])
                    values = tl.load(a, mask=(t0 + ot < end)[:, None], other=0.0)
                    xm, xl = widened(xm, EMULATED), widened(xl, EMULATED)
                    phi = narrowed(tl.reshape(xm[:, None, :] * xl[None, :, :], (G * B, BT)), DT, EMULATED)
                    fresh = tl.dot(phi, values, fresh, input_precision=PRECISION)
                sums = sums + fresh if RENEW else fresh
        tl.store(sums_of_piece + part * G * B * DV + tl.arange(0, G * B)[:, None] * DV + ov[None, :], sums)
    elif part == OF_PAIRS:
        linear = tl.zeros((D, DV), dtype=tl.float32)
        constant = tl.zeros((DV,), dtype=tl.float32)
        for head in range(h * GROUPS, (h + 1) * GROUPS):
            row = (wide(b) * heads + head) * tokens + lo
            for first in range(begin, end, renewal if RENEW else size):
                fresh = tl.zeros((D, DV), dtype=tl.float32) if RENEW else linear
                for t0 in range(first, tl.minimum(first + renewal, end) if RENEW else end, BT):
                    x = X + (row + t0) * D + (od[:, None] + ot[None, :] * D)
                    x = tl.load(x, mask=(t0 + ot < end)[None, :], other=0.0)
                    a = A + (row + t0) * DV + (ot[:, None] * DV + ov[None, :])
                    values = tl.load(a, mask=(t0 + ot < end)[:, None], other=0.0)
                    if REVERSE:
                        f0 = tl.load(F0 + row + t0 + ot, mask=t0 + ot < end, other=0.0)
                        f1 = tl.load(F1 + row + t0 + ot, mask=t0 + ot < end, other=0.0)
                        constant += tl.sum(values.to(tl.float32) * f0[:, None], 0)
                        values = (values.to(tl.float32) * f1[:, None]).to(DT)
                    else:
                        constant += tl.sum(values.to(tl.float32), 0)
                    fresh = tl.dot(x, values, fresh, input_precision=PRECISION)
                linear = linear + fresh if RENEW else fresh
        tl.store(sums_of_piece + PAIRS * DV + od[:, None] * DV + ov[None, :], linear)
        tl.store(sums_of_piece + ROWS * DV + SQUARE + D + ov, constant)
    else:
        block = (part - OF_PAIRS - 1) * B + tl.arange(0, B)
        square = tl.zeros((B, D), dtype=tl.float32)
        column = tl.zeros((B,), dtype=tl.float32)
        number = tl.zeros((), dtype=tl.float32)
        for head in range(h * GROUPS, (h + 1) * GROUPS):
            row = (wide(b) * heads + head) * tokens + lo
            for first in range(begin, end, renewal if RENEW else size):
                fresh = tl.zeros((B, D), dtype=tl.float32) if RENEW else square
                for t0 in range(first, tl.minimum(first + renewal, end) if RENEW else end, BT):
                    mt = t0 + ot < end
                    a1 = tl.load(A1 + row + t0 + ot, mask=mt, other=0.0) if WEIGHTED else mt.to(tl.float32)
                    x = X + (row + t0) * D
                    xb = tl.load(x + (block[:, None] + ot[None, :] * D), mask=mt[None, :], other=0.0)
                    weighted = xb.to(tl.float32) * a1[None, :]
                    if ORDER == 2:
                        xl = tl.load(x + (ot[:, None] * D + od[None, :]), mask=mt[:, None], other=0.0)
                        if DT == tl.float32:
                            fresh = tl.dot(weighted, xl, fresh, input_precision=PRECISION)
                        elif WEIGHTED:
                            high, low = split(weighted, DT)
                            fresh = tl.dot(high, xl, fresh, input_precision=PRECISION)
                            fresh = tl.dot(low, xl, fresh, input_precision=PRECISION)
                        else:
                            fresh = tl.dot(xb, xl, fresh, input_precision=PRECISION)
                    if REVERSE:
                        column += tl.sum(weighted * tl.load(F1 + row + t0 + ot, mask=mt, other=0.0)[None, :], 1)
                        number += tl.sum(a1 * tl.load(F0 + row + t0 + ot, mask=mt, other=0.0), 0)
                    else:
                        column += tl.sum(weighted, 1)
                        number += tl.sum(a1, 0)
                square = square + fresh if RENEW else fresh
        z = sums_of_piece + ROWS * DV
        if ORDER == 2:
            tl.store(z + block[:, None] * D + od[None, :], square)
        tl.store(z + SQUARE + block, column)
        tl.store(z + SQUARE + D + DV, number)
