"""A point of the kernel's grid of measurements and its flops: what a benchmark and its report must agree on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastmax.features import feature_count
from fastmax.plan import kernel_chunk
from fastmax_lab.measurements import slug
from fastmax_lab.report.table import mask, passes

SGEMM = 1024
"""Side of the square matrices whose product sets the pace."""

COPY = 1 << 24
"""Elements of the fp32 array whose copy sets the pace of what is bound by memory."""


@dataclass(frozen=True)
class Cell:
    """One point of the grid."""

    tokens: int
    head_dim: int
    order: int
    is_causal: bool
    backward: bool
    dtype: str = "float32"
    heads: int = 8

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "Cell":
        """Return the cell of a measurement."""
        return cls(**{name: settings[name] for name in cls.__dataclass_fields__})

    @property
    def name(self) -> str:
        """Return the name of a measurement of this cell."""
        shape = (self.dtype, self.tokens, f"d{self.head_dim}", f"order{self.order}", f"{self.heads}-heads")
        return slug(*shape, mask(self.is_causal), passes(self.backward))

    @property
    def factorized_flops(self) -> float:
        """Return 4 N F (Dv + 1) per head, and N C (D + Dv) for the dense part inside causal chunks of C tokens."""
        per_token = 4.0 * feature_count(self.head_dim, self.order) * (self.head_dim + 1)
        if self.is_causal:
            chunk = kernel_chunk(self.head_dim, self.order, is_causal=True)
            per_token += 2.0 * chunk * self.head_dim
        return per_token * self.tokens * self.heads * (3.5 if self.backward else 1)

    @property
    def dense_flops(self) -> float:
        """Return 2 N^2 (D + Dv) per head, half of it if causal."""
        dense = 4.0 * self.tokens**2 * self.head_dim * self.heads * (3.5 if self.backward else 1)
        return dense / 2 if self.is_causal else dense


def sgemm_flops() -> float:
    return 2.0 * SGEMM**3
