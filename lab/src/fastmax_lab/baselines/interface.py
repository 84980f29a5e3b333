"""The interface of the attentions: a module (q, k, v, mask) -> o, and how it treats padding."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from fastmax.nn import ForgetGate


class Attention(nn.Module, ABC):
    """Multi-head attention without projections.

    q, k and v are (B, H, N, D); mask is (B, N), True where a token is real, or None if all are. What padding holds never
    reaches the output of a real token, nor does the amount of it; the outputs of padding mean nothing.
    """

    shares_keys = False
    """True if keys are made of the queries. The model then needs no projection for them, and `k` is not read."""

    gate: ForgetGate | None
    """The gate of an attention that forgets: `log_decay` of `forward` is its result on the input of the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = None

    @abstractmethod
    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor: ...


def without_padding(mask: Tensor | None, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return (B, H, N, D) each, with zeros instead of padding."""
    return tensors if mask is None else tuple(torch.where(mask[:, None, :, None], x, 0) for x in tensors)


def per_key(mask: Tensor | None) -> Tensor | None:
    """Reshape (B, N) to (B, 1, 1, N), to broadcast over scores."""
    return None if mask is None else mask[:, None, None, :]


def real_tokens(mask: Tensor | None, like: Tensor) -> Tensor:
    """Return how many tokens of `like`, (B, H, N, D), are real, (B,)."""
    if mask is None:
        return torch.full((like.shape[0],), like.shape[2], device=like.device)
    return mask.sum(-1)
