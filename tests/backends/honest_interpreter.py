"""Makes Triton's interpreter honest about bf16 and tf32. For tests alone; the kernels are not touched.

In triton 3.7.1 it keeps bf16 as the bits of a uint16: products, sums and differences of bf16 are then those of the bit
patterns, without an error; fp32 to bf16 truncates instead of rounding to nearest even; and products of fp32 are exact,
whatever precision is asked for.
"""

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

_Handle, _Builder = interpreter.TensorHandle, interpreter.InterpreterBuilder


def _widened(handle: Any) -> Any:
    """bf16 as float32, which is exact; others as they are."""
    if handle.dtype.scalar != tl.bfloat16:
        return handle.data
    return (handle.data.astype(np.uint32) << 16).view(np.float32)


def _narrowed(x: Any) -> Any:
    """float32 as the bits of bf16, rounded to nearest even."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    with np.errstate(over="ignore"):
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), rounded)


def _as_tf32(x: Any) -> Any:
    """With ten bits of mantissa."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((bits + 0x0FFF + ((bits >> 13) & 1)) & np.uint32(0xFFFFE000)).view(np.float32)


def install() -> None:
    """For the rest of this process."""
    cast, dot, binary, fp_to_fp = _Builder.cast_impl, _Builder.create_dot, _Builder.binary_op, _Builder.create_fp_to_fp

    def cast_impl(self: Any, source: Any, to: Any) -> Any:
        before, after = source.dtype.scalar, to.scalar
        if before == tl.bfloat16 and after != tl.bfloat16:
            widened = _Handle(_widened(source), tl.float32)
            return widened if after == tl.float32 else cast(self, widened, to)
        if after == tl.bfloat16 and before != tl.bfloat16:
            return _Handle(_narrowed(source.data.astype(np.float32)), tl.bfloat16)
        return cast(self, source, to)

    def create_dot(self: Any, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> Any:
        if tl.bfloat16 in (a.dtype.scalar, b.dtype.scalar):
            product = np.matmul(_widened(a), _widened(b), dtype=np.float32)
            return _Handle(product + d.data, d.dtype.scalar)
        if a.dtype.scalar == tl.float32 and "TF32" in str(precision) and "x3" not in str(precision):
            product = np.matmul(_as_tf32(a.data), _as_tf32(b.data), dtype=np.float32)
            return _Handle(product + d.data, d.dtype.scalar)
        return dot(self, a, b, d, precision, imprecise)

    def binary_op(self: Any, left: Any, right: Any, op: Any) -> Any:
        if left.dtype.scalar == tl.bfloat16:  # rounded once, as the hardware does it
            return _Handle(_narrowed(op(_widened(left), _widened(right))), tl.bfloat16)
        return binary(self, left, right, op)

    def through_cast(self: Any, source: Any, to: Any) -> Any:
        return self.cast_impl(source, to)

    def create_fp_to_fp(self: Any, source: Any, to: Any, rounding: Any) -> Any:
        if tl.bfloat16 in (source.dtype.scalar, to.scalar):
            return self.cast_impl(source, to)
        return fp_to_fp(self, source, to, rounding)

    _Builder.cast_impl, _Builder.create_dot, _Builder.binary_op = cast_impl, create_dot, binary_op
    _Builder.create_fp_to_fp = create_fp_to_fp
    for name in ("create_fp_ext", "create_fp_trunc", "create_si_to_fp", "create_ui_to_fp"):
        setattr(_Builder, name, through_cast)
