"""Functions that several kernels share: the place of a sequence, the weight f(s), the normalization of a row."""

import triton
import triton.language as tl


@triton.jit
def wide(x):
    """Convert to int64: offsets into a tensor pass 2^31. Takes a plain int as well, which the interpreter has."""
    return x + tl.zeros((), dtype=tl.int64)


@triton.jit
def stride(x, ALIGNED: tl.constexpr):
    """Return a stride, which was divided by 16 if ALIGNED, so that the compiler knows that rows are."""
    return wide(x) * 16 if ALIGNED else wide(x)


@triton.jit
def sequence(CU, i, start, length, PACKED: tl.constexpr):
    """Return batch element, first token and number of tokens of sequence i, or of its span from `start` on."""
    if PACKED:
        first = tl.load(CU + i)
        return 0, first, tl.load(CU + i + 1) - first
    else:
        return i, start, length


@triton.jit
def first_piece(CU, CU_Y, i, size, BOTH: tl.constexpr):
    """Return the number of the first piece of packed sequence i: cu[i] // size + i leaves room for all pieces before it."""
    at = tl.load(CU + i)
    if BOTH:
        at += tl.load(CU_Y + i)
    return at // size + i


@triton.jit
def owner_of(CU, CU_Y, piece, size, count, BOTH: tl.constexpr):
    """Return the packed sequence, out of `count`, to which a piece belongs, and the number of its first one."""
    low, high = piece * 0, piece * 0 + count
    while high - low > 1:
        middle = (low + high) // 2
        is_before = first_piece(CU, CU_Y, middle, size, BOTH) <= piece
        low, high = tl.where(is_before, middle, low), tl.where(is_before, high, middle)
    return low, first_piece(CU, CU_Y, low, size, BOTH)


@triton.jit
def tile_of_rows(CU, start, length, per_sequence, count, BT: tl.constexpr, PACKED: tl.constexpr):
    """Return sequence, batch element, first token, number of tokens, and first row of a program: there is none from the number on.

    Tiles of BT rows lie on axis 0 of the grid, sequence by sequence.
    """
    tile = tl.program_id(0)
    if PACKED:
        i, first = owner_of(CU, CU, tile, BT, count, False)
        t0 = (tile - first) * BT
    else:
        i = tile // per_sequence
        t0 = (tile % per_sequence) * BT
    b, lo, n = sequence(CU, i, start, length, PACKED)
    return i, b, lo, n, t0


@triton.jit
def piece_of_both(CU, CU_Y, piece, size, per_sequence, count, PACKED: tl.constexpr):
    """Return sequence and number of a piece of `size` tokens, of queries or keys."""
    if PACKED:
        i, first = owner_of(CU, CU_Y, piece, size, count, True)
        return i, piece - first
    else:
        return piece // per_sequence, piece % per_sequence


@triton.jit
def head_of_rows(b, lo, tokens, tokens_y, key_heads, GROUPS: tl.constexpr, QUERIES: tl.constexpr):
    """Return head, key head, heads of the columns, start and decays of rows, which are queries or keys."""
    h = tl.program_id(1)
    if QUERIES:
        hk = h // GROUPS
        return (
            h,
            hk,
            key_heads,
            (wide(b) * key_heads * GROUPS + h) * tokens + lo,
            (wide(b) * key_heads + hk) * tokens_y + lo,
        )
    else:
        row = (wide(b) * key_heads + h) * tokens + lo
        return h, h, key_heads * GROUPS, row, row


@triton.jit
def slot_of_rows(CU, CU_Y, i, t0, n, n_y, chunk, chunks, PREFIX: tl.constexpr, REVERSE: tl.constexpr, HAS_IN: tl.constexpr, PACKED: tl.constexpr):  # fmt: skip
    """Return the state that rows from t0 on read, and if it holds anything: the first chunk (REVERSE: the last) has none."""
    if not PREFIX:
        return i, True
    else:
        slot = (first_piece(CU, CU_Y, i, chunk, True) if PACKED else i * chunks) + t0 // chunk
        if HAS_IN:
            return slot, True
        elif REVERSE:
            return slot, (t0 // chunk + 1) * chunk < tl.maximum(n, n_y)
        else:
            return slot, t0 >= chunk


@triton.jit
def seen(t0, chunk, n_y, BT: tl.constexpr, BS: tl.constexpr, CAUSAL: tl.constexpr, REVERSE: tl.constexpr):
    """Return the columns that rows from t0 on see densely: all, or in their chunk up to the diagonal (REVERSE: from it)."""
    if not CAUSAL:
        return t0 * 0, n_y
    elif REVERSE:
        return t0 // BS * BS, tl.minimum((t0 // chunk + 1) * chunk, n_y)
    else:
        return t0 // chunk * chunk, tl.minimum(t0 + BT, n_y)


@triton.jit
def weight(s, ORDER: tl.constexpr):
    """Return f(s) by Horner's rule, at any order."""
    f = s * 0.0 + 1.0
    for degree in tl.static_range(ORDER, 0, -1):
        f = 1.0 + f * s * (1.0 / degree)
    return f


@triton.jit
def faded(HIGH, LOW, at, t, s, mt, ms, REVERSE: tl.constexpr):
    """Return exp(c_t - c_s) of rows t and columns s (REVERSE: exp(c_s - c_t)), at most 1 even for pairs that causality hides.

    c is a sum over one chunk, in two floats: what is left of a difference of two large sums is exact.
    """
    rows, columns = tl.load(HIGH + at + t, mask=mt, other=0.0), tl.load(HIGH + at + s, mask=ms, other=0.0)
    rows_low, columns_low = tl.load(LOW + at + t, mask=mt, other=0.0), tl.load(LOW + at + s, mask=ms, other=0.0)
    x = (rows[:, None] - columns[None, :]) + (rows_low[:, None] - columns_low[None, :])
    return tl.exp(tl.minimum(-x if REVERSE else x, 0.0))


@triton.jit
def split(x, DT: tl.constexpr):
    """Return x as a sum of two numbers of a narrower dtype: two products with them keep what fp32 would keep."""
    high = x.to(DT)
    return high, (x - high.to(tl.float32)).to(DT)


@triton.jit
def widened(x, EMULATED: tl.constexpr):
    """Return a factor of a product that `narrowed` rounds: in fp32 where a GPU has no multiplication of bf16."""
    return x.to(tl.float32) if EMULATED else x


@triton.jit
def narrowed(x, DT: tl.constexpr, EMULATED: tl.constexpr):
    """Return a product of `widened` factors in DT. EMULATED: rounded to nearest even, in three instructions, as it is no NaN."""
    if EMULATED:
        bits = x.to(tl.int32, bitcast=True)
        bits = (bits + ((bits >> 16) & 1) + 0x7FFF) >> 16
        return bits.to(tl.int16).to(DT, bitcast=True)
    else:
        return x


@triton.jit
def normalize_rows(x, channels, DR: tl.constexpr, NORM: tl.constexpr, EPS: tl.constexpr):
    """Return x_hat of rows (BT, D) of which `channels` count, and the factor of each row, as `fastmax.core` defines them."""
    if NORM == "none":
        return x, tl.sum(x, 1) * 0.0 + 1.0
    else:
        # a token whose squares would overflow is made smaller, by a power of two
        high = tl.max(tl.where(channels[None, :], x, -float("inf")), 1)
        low = tl.min(tl.where(channels[None, :], x, float("inf")), 1)
        size = high / 2 - low / 2 if NORM == "standardize" else tl.maximum(high, -low) / 2
        shrink = tl.where(size > 72057594037927936.0, 2.117582368135751e-22, 1.0)  # 2^56, 2^-72
        x = x * shrink[:, None]
        if NORM == "standardize":
            # the first channel goes first: a constant token becomes exact zeros
            x -= tl.sum(tl.where((tl.arange(0, x.shape[1]) == 0)[None, :], x, 0.0), 1)[:, None]
            x -= tl.sum(tl.where(channels[None, :], x, 0.0), 1)[:, None] / DR
        x = tl.where(channels[None, :], x, 0.0)
        r = 1.0 / tl.sqrt(tl.sum(x * x, 1) / DR + EPS * shrink * shrink)
        return x * r[:, None], r * shrink
