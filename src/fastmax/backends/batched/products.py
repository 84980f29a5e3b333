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


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a @ b to a total, in one launch where its matrices lie in memory at equal distances."""
    whole = _matrices(total)
    if whole is None or a.dtype != b.dtype or not (a.dtype == total.dtype or a.device.type in WIDE_OUTPUT):
        total.add_(product(a, b, total.dtype))
    elif a.dtype == total.dtype:
        whole.baddbmm_(a.flatten(0, -3), b.flatten(0, -3))
    else:
        torch.baddbmm(whole, a.flatten(0, -3), b.flatten(0, -3), out_dtype=total.dtype, out=whole)


def _matrices(x: Tensor) -> Tensor | None:
    """Return (..., m, n) as a view of three dimensions, or None where there is none."""
    expected = None
    for size, stride in zip(reversed(x.shape[:-2]), reversed(x.stride()[:-2]), strict=True):
        if size == 1:
            continue
        if expected is not None and stride != expected:
            return None
        expected = size * stride
    return x.flatten(0, -3)
