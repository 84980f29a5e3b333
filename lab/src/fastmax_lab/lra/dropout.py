"""Dropout of activations that is quick on the CPU, where torch's own takes a quarter of a training step."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout


class Dropout(nn.Module):
    """nn.Dropout. On the CPU one 64-bit random number decides four elements, by 16 bits each: rates are exact to 2^-16."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"a dropout rate must be in [0, 1), got {rate}")
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        if x.device.type != "cpu":
            return dropout(x, self.rate)
        result: Tensor = _Drop.apply(x, self.rate)  # type: ignore[no-untyped-call]
        return result


def kept(shape: torch.Size, rate: float) -> Tensor:
    """Boolean, from torch's generator: True with probability 1 - rate."""
    bits = torch.empty((shape.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    return bits.view(torch.int16)[: shape.numel()].view(shape) >= round(rate * 2**16) - 2**15


class _Drop(torch.autograd.Function):
    """Saves one byte per element."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        mask = kept(x.shape, rate)
        ctx.save_for_backward(mask)
        ctx.factor = 1 / (1 - rate)
        return (x * mask).mul_(ctx.factor)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (mask,) = ctx.saved_tensors
        return (grads[0] * mask).mul_(ctx.factor), None
