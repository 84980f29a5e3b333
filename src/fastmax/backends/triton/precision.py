"""The dtype of the products of the kernels; sums are always in fp32.

bf16 has the range that sums need. fp16 lacks it, so its products are those of tf32, which has the same precision. A product
of fp32 is three of tf32; AMD's cards have fp32 on their matrix cores.
"""

from typing import Any, NamedTuple

import torch


class Products(NamedTuple):
    dtype: torch.dtype  # of normalized tokens and of the states of chunks
    precision: str  # of products of fp32, as Triton calls it
    emulated: bool = False  # bf16 has no multiplication of its own: features are made in fp32

    @property
    def language(self) -> Any:
        """Return the dtype as Triton's."""
        import triton.language as tl

        return tl.bfloat16 if self.dtype == torch.bfloat16 else tl.float32


def products_of(q: torch.dtype, k: torch.dtype, v: torch.dtype, arch: str) -> Products:
    if q == k == v == torch.bfloat16:
        return Products(torch.bfloat16, "ieee", emulated=arch.startswith("gfx"))
    half = (torch.bfloat16, torch.float16)
    amd = arch.startswith("gfx")
    if q in half and k in half and v in half:
        return Products(torch.float32, "ieee" if amd else "tf32")
    return Products(torch.float32, "ieee" if amd else "tf32x3")
