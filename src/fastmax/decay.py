"""Forgetting, where it is the same for all backends: the strongest decay that a sum takes, checks, gradients of log_decay."""

import torch
from torch import Tensor


def wide(device: torch.device) -> torch.dtype:
    """Return the dtype of sums of log_decay: fp64 if the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


STRONGEST = {torch.float32: -110.0, torch.float64: -750.0}
"""The strongest log_decay that sums take, by its dtype. A stronger one counts as this one, and its gradient is 0.

exp of it is exactly 0: the smallest numbers above 0 are exp(-103.3) and exp(-744.4). So no weight depends on the bound. It is
there for the decays that follow. A factor exp(c_i - c_j) is a difference of running sums, and after -1e16 (or finfo.min, the
natural way to write "forget everything here") a sum has no digits left for them. After r decays of this strength a sum in
fp64 still resolves r * 1e-14, or r * 8e-14. native/forms/decay.h has the same numbers.
"""


def bounded(log_decay: Tensor) -> Tensor:
    """Return log_decay as sums take it. The gradient of what is beyond the bound is 0."""
    return log_decay.clamp(min=STRONGEST[log_decay.dtype])


_BEYOND = {
    dtype: torch.nextafter(torch.tensor(x, dtype=dtype), -torch.tensor(torch.inf, dtype=dtype)).item()
    for dtype, x in STRONGEST.items()
}


def grads_within_bound(grads: Tensor, log_decay: Tensor) -> Tensor:
    """Return gradients with zeros where `bounded` changed log_decay: sums that cancel leave their rounding there."""
    # one op, because a comparison and a fill are a tenth of a short backward pass
    return torch.ops.aten.threshold_backward(grads, log_decay, _BEYOND[log_decay.dtype])  # type: ignore[no-any-return]


def log_decay_grads(dc: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
    """Sum dc, (..., N), from the end: the decay of a token is in the sums c of all tokens of its sequence from it on."""
    total = dc.flip(-1).cumsum(-1, dtype=wide(dc.device)).flip(-1)
    if cu_seqlens is None:
        return total
    # of packed sequences, less what comes after their ends
    ends = cu_seqlens.narrow(0, 1, cu_seqlens.shape[0] - 1).to(torch.int64)
    after = torch.nn.functional.pad(total, (0, 1)).index_select(-1, ends)
    lengths = cu_seqlens.diff().to(torch.int64)
    return total - after.repeat_interleave(lengths, -1, output_size=total.shape[-1])  # output_size: no synchronization


def rows_part(g: Tensor, dg: Tensor | None, groups: int) -> Tensor | float:
    """Return the gradient of c as the decay of queries, (B, Hkv, N), from which keys subtract their part.

    A factor on both parts of a quotient does not change it, so only the gradient of the denominator is left.
    """
    if dg is None:
        return 0.0
    batch, heads, tokens = g.shape
    groups = max(1, groups)  # without heads
    return (dg * g).view(batch, heads // groups, groups, tokens).sum(2)


def check_decays(log_decay: Tensor) -> None:
    """Refuse values that are no decays, naming the first; reads them all."""
    wrong = ~((log_decay <= 0) & (log_decay > -torch.inf))  # NaN too
    if bool(wrong.any()):
        index = tuple(wrong.nonzero()[0].tolist())
        raise ValueError(
            f"log_decay must be finite and at most 0, got {log_decay[index].item()} at (batch, head, token) = {index}"
        )
