"""One step of decoding: add a token to a state and read it, in one pass over the state, in place."""

import torch
from torch import Tensor

from fastmax.backends.native import abi
from fastmax.call import accumulation_dtype
from fastmax.core import EPS
from fastmax.features import feature_count


def step_unsupported(q: Tensor, v: Tensor, state: Tensor, *, order: int) -> str | None:
    """Why `step` cannot run on these tensors, or None."""
    library = abi.load()
    if isinstance(library, str):
        return library
    if q.device.type != "cpu":
        return f"it runs on the CPU, and the tensors are on {q.device}"
    if order > 2:
        return f"it has the orders 1 and 2, not {order}"
    if not state.is_contiguous():
        return "the state is not contiguous"
    if max(q.shape[-1], v.shape[-1]) > abi.MAX_DIM:
        return f"it takes up to {abi.MAX_DIM} channels per head, and there are {q.shape[-1]} and {v.shape[-1]}"
    return None


def step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    *,
    order: int,
    scale: float,
    head_scale: Tensor | None = None,
    normalize: bool = True,
    key_mask: Tensor | None = None,
    level: str | None = None,
) -> Tensor:
    """The output (B, Hq, Dv) of one token per sequence: q (B, Hq, D), k (B, Hkv, D), v (B, Hkv, Dv).

    `state` (B, Hkv, F, Dv + 1) is updated in place. `key_mask`, bool, broadcasts to (B, Hkv); a key that does not count
    leaves its state as it is. Not differentiable.
    """
    reason = step_unsupported(q, v, state, order=order)
    if reason is not None:
        raise ValueError(f"native.step cannot run this call: {reason}")
    batch, query_heads, head_dim = q.shape
    key_heads, value_dim = v.shape[1:]
    dtype = accumulation_dtype(q.dtype, k.dtype, v.dtype)
    expected = (batch, key_heads, feature_count(head_dim, order), value_dim + 1)
    if tuple(state.shape) != expected or state.dtype != dtype:
        raise ValueError(f"state must be {expected} of {dtype}, got {tuple(state.shape)} of {state.dtype}")
    o = torch.empty(batch, query_heads, value_dim, dtype=v.dtype, device="cpu")
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    mask = None if key_mask is None else key_mask.expand(batch, key_heads).contiguous()
    scales = None if head_scale is None else head_scale.to(torch.float64).contiguous()
    call = abi.STEP.pack(
        abi.TYPES[dtype], batch, query_heads, key_heads, head_dim, value_dim, order, normalize, scale, EPS,
        *_token(q), *_token(k), *_token(v), *_token(o),
        0 if mask is None else mask.data_ptr(), 0 if scales is None else scales.data_ptr(), state.data_ptr(),
    )  # fmt: skip
    library = abi.load()
    assert not isinstance(library, str), library
    library.run("step", call, level)
    return o


def _token(x: Tensor) -> abi.Fields:
    batch_stride, head_stride, _ = x.stride()
    return (x.data_ptr(), batch_stride, head_stride, 0, abi.TYPES[x.dtype])
