"""Linear layers and dropout of the encoder that are quick on the CPU, where torch's own take most of a training step."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, dropout

PARTS = 16
"""The number of images that torch needs to give a convolution of one pixel to oneDNN."""
MIN_ROWS = 8192
"""With fewer, preparing oneDNN for a new shape takes longer than it saves."""


class QuickLinear(nn.Linear):
    """nn.Linear. On the CPU a convolution of one pixel, by oneDNN: in fp32 2.2 times as fast as MKL's product on AMD."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.shape[:-1].numel()
        if x.device.type != "cpu" or x.dtype != torch.float32 or rows < MIN_ROWS or rows % PARTS:
            return super().forward(x)
        images = x.reshape(PARTS, 1, rows // PARTS, -1).permute(0, 3, 1, 2)
        y = conv2d(images, self.weight[:, :, None, None], self.bias)
        return y.permute(0, 2, 3, 1).reshape(*x.shape[:-1], -1)


class QuickDropout(nn.Module):
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
    """Draw booleans from torch's generator: True with probability 1 - rate."""
    bits = torch.empty((shape.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    return bits.view(torch.int16)[: shape.numel()].view(shape) >= round(rate * 2**16) - 2**15


class _Drop(torch.autograd.Function):
    """Saves one byte per element. Factors are made before the product: a product with booleans is seven times as slow."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        mask, ctx.factor = kept(x.shape, rate), 1 / (1 - rate)
        ctx.save_for_backward(mask)
        return _dropped(x, mask, ctx.factor)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (mask,) = ctx.saved_tensors
        return _dropped(grads[0], mask, ctx.factor), None


def _dropped(x: Tensor, mask: Tensor, factor: float) -> Tensor:
    return mask.to(x.dtype).mul_(factor).mul_(x)
