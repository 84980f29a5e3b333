"""The kernel `normalize`: raw tokens to x_hat in the dtype of the products, padded to D channels, times the scale.

Schedule: a program takes BT tokens of one head. Masked tokens, whatever they hold, and channels from DR on become zeros, so
that no other kernel has to ask.
"""

import triton
import triton.language as tl

from fastmax.backends.triton.kernels.common import normalize_rows, wide


@triton.jit(do_not_specialize=["tokens", "heads", "scale"])
def normalize(X, MASK, HEAD_SCALE, OUT, tokens, heads, x_b, x_h, x_n, scale,
              DR: tl.constexpr, D: tl.constexpr, BT: tl.constexpr, NORM: tl.constexpr, EPS: tl.constexpr,
              MASKED: tl.constexpr, SCALED: tl.constexpr):  # fmt: skip
    """Write OUT (B, H, N, D) from X (B, H, N, DR), channels contiguous. MASK is (B, H, N), HEAD_SCALE (H,) in fp32."""
    tiles = tl.cdiv(tokens, BT)
    head = wide(tl.program_id(0) // tiles)
    t, d = (tl.program_id(0) % tiles) * BT + tl.arange(0, BT), tl.arange(0, D)
    mt, md = t < tokens, d < DR
    if MASKED:
        counts = tl.load(MASK + head * tokens + t, mask=mt, other=0.0) != 0.0
    else:
        counts = mt
    place = X + (head // heads) * x_b + (head % heads) * x_h + wide(t)[:, None] * x_n + d[None, :]
    x = tl.load(place, mask=counts[:, None] & md[None, :], other=0.0).to(tl.float32)
    x, _ = normalize_rows(x, md, DR, NORM, EPS)
    factor = scale * tl.load(HEAD_SCALE + head % heads) if SCALED else scale
    x = tl.where(counts[:, None], x * factor, 0.0)
    tl.store(OUT + head * tokens * D + wide(t)[:, None] * D + d[None, :], x.to(OUT.dtype.element_ty), mask=mt[:, None])
