"""The kernel `normalize`: raw tokens to x_hat in the dtype of the products, padded to D channels, times the scale.

Keys bring their values, which are padded to DV channels, and their mask, which becomes ones and zeros.

Schedule: a program takes BT tokens of one head. Masked tokens, whatever they hold, and channels beyond those that there are become
zeros, so that no other kernel has to ask, and all others load aligned rows.
"""

import triton
import triton.language as tl

from fastmax.backends.triton.kernels.common import normalize_rows, stride, wide


@triton.jit(
    do_not_specialize=[
        "tokens", "heads", "x_b", "x_h", "x_n", "v_b", "v_h", "v_n", "mask_b", "mask_h", "mask_n", "scale",
    ]
)  # fmt: skip
def normalize(X, V, MASK, HEAD_SCALE, OUT, V_OUT, COUNTS, tokens, heads, x_b, x_h, x_n, v_b, v_h, v_n, mask_b, mask_h, mask_n, scale,
              DR: tl.constexpr, D: tl.constexpr, DVR: tl.constexpr, DV: tl.constexpr, BT: tl.constexpr, NORM: tl.constexpr,
              EPS: tl.constexpr, KEYS: tl.constexpr, MASKED: tl.constexpr, SCALED: tl.constexpr, ALIGNED: tl.constexpr):  # fmt: skip
    """Write OUT (B, H, N, D) from X (B, H, N, DR), channels contiguous; of KEYS also V_OUT (.., DV), and COUNTS (B, H, N) if MASKED."""
    tiles = tl.cdiv(tokens, BT)
    head = wide(tl.program_id(0) // tiles)
    b, h = head // heads, head % heads
    t, d = (tl.program_id(0) % tiles) * BT + tl.arange(0, BT), tl.arange(0, D)
    mt, md = t < tokens, d < DR
    counts = mt
    row = head * tokens + t
    if MASKED:
        counts = tl.load(MASK + b * mask_b + h * mask_h + wide(t) * mask_n, mask=mt, other=0) != 0
        tl.store(COUNTS + row, counts.to(tl.float32), mask=mt)
    place = (
        X + b * stride(x_b, ALIGNED) + h * stride(x_h, ALIGNED) + wide(t)[:, None] * stride(x_n, ALIGNED) + d[None, :]
    )
    x = tl.load(place, mask=counts[:, None] & md[None, :], other=0.0).to(tl.float32)
    x, _ = normalize_rows(x, md, DR, NORM, EPS)
    factor = scale * tl.load(HEAD_SCALE + h) if SCALED else scale
    x = tl.where(counts[:, None], x * factor, 0.0)
    tl.store(OUT + row[:, None] * D + d[None, :], x.to(OUT.dtype.element_ty), mask=mt[:, None])
    if KEYS:
        dv = tl.arange(0, DV)
        place = (
            V
            + b * stride(v_b, ALIGNED)
            + h * stride(v_h, ALIGNED)
            + wide(t)[:, None] * stride(v_n, ALIGNED)
            + dv[None, :]
        )
        v = tl.load(place, mask=counts[:, None] & (dv < DVR)[None, :], other=0.0)
        tl.store(V_OUT + row[:, None] * DV + dv[None, :], v.to(V_OUT.dtype.element_ty), mask=mt[:, None])
