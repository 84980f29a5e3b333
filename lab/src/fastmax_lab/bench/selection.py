"""The part of the kernel's grid to measure, and where: options of `fastmax-lab bench kernel`."""

from dataclasses import dataclass
from typing import Annotated, Literal

from fastmax_lab._settings import Range


@dataclass(frozen=True, kw_only=True)
class Selection:
    """A part of the grid. Lengths and head dimensions may be any, also beside the grid."""

    tokens: Annotated[tuple[int, ...], Range(at_least=1, at_most=1 << 22)] = ()
    """Only these lengths."""
    head_dim: Annotated[tuple[int, ...], Range(at_least=1, at_most=256)] = ()
    """Only these head dimensions."""
    order: Annotated[int | None, Range(at_least=1, at_most=2)] = None
    """Only this order."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Only this dtype."""
    device: Literal["cpu", "cuda"] = "cpu"
    """The native kernel, or the Triton backend on a GPU."""
