"""The paper, as written: standardize -> moments -> readout. Numbers in brackets are its displayed equations.

This file and `reference.py` define what Fastmax means; every backend is tested against them. It is meant to be read,
not to be fast: the causal form stores one state per token, as equations [34-35] do. docs/errata.md lists where the
paper contradicts itself and what holds here.
"""

from math import factorial
from typing import NamedTuple

import torch
from torch import Tensor

EPS = 1e-6
"""Added to the variance of a token, so that a token whose channels are all equal becomes zeros."""

MAX_ORDER = 4


def standardize(x: Tensor, eps: float = EPS) -> Tensor:
    """Standardize each token [5-6]: mean 0 and (biased) standard deviation 1 over its channels, the last dimension.

        >>> standardize(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        tensor([-1.3416, -0.4472,  0.4472,  1.3416])

    No statistic crosses tokens, so nothing leaks from the future. Half precision is standardized in fp32.

    Args:
        x: (..., D).
        eps: added to the variance, so that a token whose channels are all equal becomes zeros.
    """
    return normalize_with_scale(x.to(torch.promote_types(x.dtype, torch.float32)), eps)[0].to(x.dtype)


def rms_normalize(x: Tensor, eps: float = EPS) -> Tensor:
    """Divide each token by its root mean square and keep its mean: unlike [5-6] this commutes with rotations of channels."""
    return normalize_with_scale(x.to(torch.promote_types(x.dtype, torch.float32)), eps, centre=False)[0].to(x.dtype)


def normalize_with_scale(x: Tensor, eps: float = EPS, *, centre: bool = True) -> tuple[Tensor, Tensor]:
    """Return normalized tokens of fp32 or fp64, and the factor of each, (..., 1)."""
    root = 64 if x.dtype == torch.float32 else 512  # 2^root squared overflows
    high, low = x.detach().amax(-1, keepdim=True), x.detach().amin(-1, keepdim=True)
    size = high / 2 - low / 2 if centre else torch.maximum(high, -low) / 2
    shrink = torch.ones_like(size).masked_fill(size > 2.0 ** (root - 8), 2.0 ** (-root - 8))
    x = x * shrink  # a power of two, so it is exact, and 1 for all but huge tokens
    if centre:
        x = x - x[..., :1]  # exact zeros for a constant token, whatever its magnitude
        x = x - x.mean(-1, keepdim=True)
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps * shrink.square())
    return x * scale, scale * shrink


def normalized(x: Tensor, how: str) -> Tensor:
    """Normalize x by "standardize", "rms" or "none"."""
    return standardize(x) if how == "standardize" else rms_normalize(x) if how == "rms" else x


def normalized_vjp(x: Tensor, d: Tensor, how: str) -> Tensor:
    """Return the gradient of x, of fp32 or fp64, from that of normalized(x)."""
    if how == "none":
        return d
    x_hat, scale = normalize_with_scale(x, centre=how == "standardize")
    if how == "standardize":
        d = d - d.mean(-1, keepdim=True)
    return (d - x_hat * (d * x_hat).mean(-1, keepdim=True)) * scale


def similarity(s: Tensor, order: int) -> Tensor:
    """Return f(s) of equation [8], the sum of s^l / l! for l = 0 .. order, by Horner's rule.

        >>> similarity(torch.tensor([0.0, 1.0, 2.0]), order=2)
        tensor([1.0000, 2.5000, 5.0000])

    Args:
        s: scaled products of queries and keys, of any shape.
        order: the degree of the polynomial.
    """
    f = torch.ones_like(s) if order == 0 else 1 + s / order
    for degree in range(order - 1, 0, -1):
        f = 1 + f * (s if degree == 1 else s / degree)
    return f


def default_scale(order: int, head_dim: int) -> float:
    """Return the default factor of s: 1, equation [8] as written, for even orders; 1 / D for odd ones.

    For an even order f is positive everywhere. For an odd one it is negative at large negative s; standardized q and k
    give |s| <= D, so 1 / D is the scale at which the weights are never negative.
    """
    return 1.0 if order % 2 == 0 else 1.0 / head_dim


class Moments(NamedTuple):
    """All that attention needs of the keys, by degree: x[l] is (..., D^l, Dv) and y[l] is (..., D^l, 1)."""

    x: list[Tensor]
    y: list[Tensor]


def tensor_power(x: Tensor, degree: int) -> Tensor:
    """Multiply `degree` channels of a token in every way: (..., N, D) -> (..., N, D^degree)."""
    power = torch.ones_like(x[..., :1])
    for _ in range(degree):
        power = (power.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2)
    return power


def moments(k_hat: Tensor, v: Tensor, order: int, is_causal: bool = False, log_decay: Tensor | None = None) -> Moments:
    """Sum over the keys [28-29] or, if causal, over those up to each token [34-35], a dimension N before the last two.

    Forgetting (`log_decay`, (..., N), not in the paper) is for the causal form: what came before fades at every token.
    """
    powers = [tensor_power(k_hat, degree) for degree in range(order + 1)]
    ones = torch.ones_like(v[..., :1])
    if is_causal:
        x = [running_sum(p.unsqueeze(-1) * v.unsqueeze(-2), log_decay) for p in powers]
        y = [running_sum(p.unsqueeze(-1), log_decay) for p in powers]
    else:
        x = [p.mT @ v for p in powers]
        y = [p.mT @ ones for p in powers]
    return Moments(x, y)


def running_sum(terms: Tensor, log_decay: Tensor | None) -> Tensor:
    """Sum over tokens of (..., N, F, J): s_i = s_(i-1) + t_i, or exp(log_decay_i) s_(i-1) + t_i."""
    if log_decay is None:
        return terms.cumsum(-3)
    total = [terms[..., 0, :, :]]
    for i in range(1, terms.shape[-3]):
        total.append(log_decay[..., i, None, None].exp() * total[-1] + terms[..., i, :, :])
    return torch.stack(total, -3)


def readout(q_hat: Tensor, m: Moments, order: int, is_causal: bool = False) -> tuple[Tensor, Tensor]:
    """Return f and g [26-27], [32-33] if causal, with the 1 / l! of equation [8] that they lose."""
    f, g = torch.zeros(()), torch.zeros(())
    for degree in range(order + 1):
        q = tensor_power(q_hat, degree) / factorial(degree)
        if is_causal:
            q = q.unsqueeze(-2)
            f = f + (q @ m.x[degree]).squeeze(-2)
            g = g + (q @ m.y[degree]).squeeze(-2)
        else:
            f = f + q @ m.x[degree]
            g = g + q @ m.y[degree]
    return f, g


def fastmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    order: int = 2,
    scale: float | None = None,
    is_causal: bool = False,
    log_decay: Tensor | None = None,
) -> Tensor:
    """Return o = f / g [19] for q, k of (..., N, D) and v of (..., N, Dv)."""
    scale = default_scale(order, q.shape[-1]) if scale is None else scale
    m = moments(standardize(k), v, order, is_causal, log_decay)
    f, g = readout(standardize(q) * scale, m, order, is_causal)
    return f / g
