"""Forgetting, where it is the same for all backends: from the gradients of the sums of log_decay to those of log_decay."""

import torch
from torch import Tensor


def wide(device: torch.device) -> torch.dtype:
    """What sums of log_decay are taken in: fp64, where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def log_decay_grads(dc: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
    """The decay of a token is in the sums c of all tokens of its sequence from it on: sums of dc, (..., N), from the end."""
    total = dc.flip(-1).cumsum(-1, dtype=wide(dc.device)).flip(-1)
    if cu_seqlens is None:
        return total
    # of packed sequences, less what comes after their ends
    ends = cu_seqlens.narrow(0, 1, cu_seqlens.shape[0] - 1).to(torch.int64)
    after = torch.nn.functional.pad(total, (0, 1)).index_select(-1, ends)
    lengths = cu_seqlens.diff().to(torch.int64)
    return total - after.repeat_interleave(lengths, -1, output_size=total.shape[-1])  # which nobody has to wait for


def rows_part(g: Tensor, dg: Tensor | None, groups: int) -> Tensor | float:
    """The gradient of c as the decay of queries, (B, Hkv, N): that of a quotient does not change with a factor on both its
    parts, so only the denominator's own gradient is left. Keys take their part off it."""
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
