"""Rotary position embeddings for standardized queries and keys.

A rotation keeps norms, so after the standardization s = q̂ . k̂ depends on the difference of positions only. Before it, s
would not, because a rotation does not keep the mean over channels that the standardization removes.
"""

import torch
from torch import Tensor


def rotate(x: Tensor, *, base: float = 10000.0, positions: Tensor | None = None) -> Tensor:
    """Rotate channel m and channel m + D / 2 of the token at position t by the angle t * base^(-2 m / D).

        >>> q = torch.randn(1, 4, 100, 16)
        >>> rotate(standardize(q)).shape
        torch.Size([1, 4, 100, 16])

    Args:
        x: (..., N, D), D even.
        base: the wavelengths reach from 2 pi to nearly 2 pi * base.
        positions: of the tokens, broadcastable to (..., N), such as (B, 1, N) for (B, heads, N, D); default 0 .. N - 1.
    """
    tokens, head_dim = x.shape[-2:]
    if head_dim % 2:
        raise ValueError(f"rotary embeddings pair channels, so D must be even, got {head_dim}")
    if positions is None:
        positions = torch.arange(tokens, device=x.device)
    # In fp64, because an angle of 10^6 in fp32 is off by up to 0.06.
    frequencies = base ** (-torch.arange(0, head_dim, 2, device=x.device, dtype=torch.float64) / head_dim)
    angles = positions.to(torch.float64).unsqueeze(-1) * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)
