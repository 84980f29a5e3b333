"""Batched matrix products whose sums are wide: of half precision with sums in fp32."""

import torch
from torch import Tensor

WIDE_OUTPUT = ("cuda", "meta")
"""Devices with products of half precision whose results are fp32. Elsewhere the factors are converted."""


def product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a @ b of (B, H, slots, m, k) and (B, H, slots, k, n) in `dtype`, which is at least as wide as theirs."""
    if a.dtype == b.dtype == dtype:
        return a @ b
    if a.dtype == b.dtype and a.device.type in WIDE_OUTPUT:
        found = torch.bmm(a.flatten(0, -3), b.flatten(0, -3), out_dtype=dtype)
        return found.view(*a.shape[:-1], b.shape[-1])
    return a.to(dtype) @ b.to(dtype)
