"""The kernel `scan`: from the sums of pieces, S before each chunk (REVERSE: after it) or S of a whole sequence, and the total.

Schedule: a program takes E numbers of the state of one sequence and key head and walks the pieces, four loads at a time, so that
they are on their way together. Additions are in fp32 and in one order. Forgetting is a factor on the sum per chunk: what a state
fades by until the last token of the chunk.
"""

import triton
import triton.language as tl

from fastmax.backends.triton.kernels.common import first_piece, sequence, wide


@triton.jit
def _fade(UNTIL, row, last, n):
    """Return what a state fades by until token `last`, or the last one that there is."""
    return tl.load(UNTIL + row + tl.minimum(last, n - 1), mask=n > 0, other=1.0)


@triton.jit(do_not_specialize=["tokens", "start", "length", "longest", "size", "per_sequence", "key_heads"])
def scan(SUMS, UNTIL, S_IN, S, Z, S_OUT, CU, CU_Y, tokens, start, length, longest, size, per_sequence, key_heads,
         BODY: tl.constexpr, SIZE: tl.constexpr, E: tl.constexpr, REVERSE: tl.constexpr, PACKED: tl.constexpr,
         DECAY: tl.constexpr, PREFIX: tl.constexpr, STORE: tl.constexpr, HAS_IN: tl.constexpr, HAS_OUT: tl.constexpr):  # fmt: skip
    """Add SUMS (pieces, key_heads, SIZE), fp32, to S_IN and into S_OUT, (sequences, key_heads, SIZE), fp32.

    STORE: S (.., BODY), in its dtype, and Z (.., SIZE - BODY), fp32, get the first BODY numbers and the others, of each chunk if
    PREFIX, else of each sequence. The last piece's sums are there if HAS_OUT or not PREFIX.
    """
    COLUMN: tl.constexpr = SIZE - BODY
    OF_BODY: tl.constexpr = (BODY + E - 1) // E
    BLOCKS: tl.constexpr = OF_BODY + (COLUMN + E - 1) // E
    block, i, h = tl.program_id(0) % BLOCKS, tl.program_id(0) // BLOCKS, tl.program_id(1)
    b, lo, n = sequence(CU, i, start, length, PACKED)
    slot = i * per_sequence
    if PACKED:
        longest = tl.maximum(n, tl.load(CU_Y + i + 1) - tl.load(CU_Y + i))
        slot = first_piece(CU, CU_Y, i, size, True)
    pieces = tl.cdiv(longest, size)
    in_body = block < OF_BODY
    at = tl.where(in_body, block, block - OF_BODY) * E + tl.arange(0, E)
    keep = at < tl.where(in_body, BODY, COLUMN)
    place = at + tl.where(in_body, 0, BODY)
    own, row = wide(i) * key_heads + h, (wide(b) * key_heads + h) * tokens + lo
    total = tl.zeros((E,), dtype=tl.float32)
    if HAS_IN:
        total += tl.load(S_IN + own * SIZE + place, mask=keep, other=0.0)
        if DECAY and not PREFIX:
            total *= _fade(UNTIL, row, n - 1, n)
    needed = pieces if HAS_OUT or not PREFIX else pieces - 1
    for step0 in range(0, pieces, 4):
        first, way = wide(slot + (pieces - 1 - step0 if REVERSE else step0)), -1 if REVERSE else 1
        stay = SUMS + (first * key_heads + h) * SIZE + place
        apart = way * key_heads * SIZE
        x0 = tl.load(stay, mask=keep & (step0 < needed), other=0.0)
        x1 = tl.load(stay + apart, mask=keep & (step0 + 1 < needed), other=0.0)
        x2 = tl.load(stay + 2 * apart, mask=keep & (step0 + 2 < needed), other=0.0)
        x3 = tl.load(stay + 3 * apart, mask=keep & (step0 + 3 < needed), other=0.0)
        for step in tl.static_range(4):
            if PREFIX:
                there = keep & (step0 + step < pieces)
                if STORE:
                    to = (first + way * step) * key_heads + h
                    if in_body:
                        tl.store(S + to * BODY + at, total.to(S.dtype.element_ty), mask=there)
                    else:
                        tl.store(Z + to * COLUMN + at, total, mask=there)
                if DECAY:
                    c = pieces - 1 - step0 - step if REVERSE else step0 + step
                    total *= _fade(UNTIL, row, (c + 1) * size - 1, tl.where(step0 + step < pieces, n, 0))
            total += x0 if step == 0 else x1 if step == 1 else x2 if step == 2 else x3
    if STORE and not PREFIX:
        if in_body:
            tl.store(S + own * BODY + at, total.to(S.dtype.element_ty), mask=keep)
        else:
            tl.store(Z + own * COLUMN + at, total, mask=keep)
    if HAS_OUT:
        tl.store(S_OUT + own * SIZE + place, total, mask=keep)
