"""One step of decoding: the new token joins the recent ones in place, and its query reads the sum and sees all of those."""

import torch
from torch import Tensor

from fastmax.backends.native import abi
from fastmax.core import EPS


def can_step(device: torch.device, order: int, head_dim: int, value_dim: int) -> bool:
    library = abi.load()
    return (
        not isinstance(library, str) and device.type == "cpu" and order <= 2 and max(head_dim, value_dim) <= abi.MAX_DIM
    )


def step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    total: Tensor | None,
    recent_k: Tensor,
    recent_u: Tensor,
    recent_decay: Tensor | None,
    recent_count: int,
    *,
    order: int,
    scale: float,
    head_scale: Tensor | None,
    normalize: str,
    key_mask: Tensor | None,
    log_decay: Tensor | None,
    fold: bool = False,
    level: str | None = None,
) -> Tensor:
    """As `fastmax.state.decode.step` says; `level` forces an instruction set."""
    batch, query_heads, head_dim = q.shape
    key_heads, value_dim = v.shape[1:]
    o = torch.empty((batch, query_heads, value_dim), dtype=v.dtype, device="cpu")
    q, k, v = (x if x.stride(2) == 1 else x.contiguous() for x in (q, k, v))
    mask = None if key_mask is None else key_mask.contiguous()
    scales = None if head_scale is None else head_scale.to(torch.float64).contiguous()
    decay = None if log_decay is None else log_decay.contiguous()
    call = abi.STEP.pack(
        abi.TYPES[recent_k.dtype], batch, query_heads, key_heads, head_dim, value_dim, order, abi.NORMALIZATIONS[normalize],
        recent_count, recent_k.shape[2], fold, scale, EPS, *_token(q), *_token(k), *_token(v), *_token(o),
        0 if mask is None else mask.data_ptr(), 0 if scales is None else scales.data_ptr(),
        0 if total is None else total.data_ptr(), recent_k.data_ptr(), recent_u.data_ptr(),
        0 if recent_decay is None else recent_decay.data_ptr(), 0 if decay is None else decay.data_ptr(),
    )  # fmt: skip
    library = abi.load()
    assert not isinstance(library, str), library
    library.run("step", call, level)
    return o


def _token(x: Tensor) -> abi.Fields:
    batch_stride, head_stride, _ = x.stride()
    return (x.data_ptr(), batch_stride, head_stride, 0, abi.TYPES[x.dtype])
