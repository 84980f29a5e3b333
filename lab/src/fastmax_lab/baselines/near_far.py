"""Near keys by softmax's exponential, far keys by the polynomial of order 2, normalized together; in linear time.

The last `near` keys of a query have the weight exp(s), older ones 1 + s + s^2 / 2. Chunks of queries see their own and the
last chunk densely, and older chunks by a sum of features. Plain PyTorch with autograd: for small models.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from fastmax.core import normalized
from fastmax.nn import FastmaxAttention

CHUNK = 64


def near_far(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    near: int,
    is_causal: bool,
    log_decay: Tensor | None,
    scale: float,
    normalize: bool | str,
    order: int,
    **_: Any,
) -> Tensor:
    """Attend causally, (B, H, N, D) and (B, H, N, Dv) -> (B, H, N, Dv), without a mask."""
    assert mask is None
    assert is_causal
    assert order == 2
    if normalize:
        q, k = normalized(q, "standardize"), normalized(k, "standardize")
    tokens = q.shape[2]
    chunk = max(CHUNK, near)
    rest = -tokens % chunk
    decay = q.new_zeros(q.shape[:3]) if log_decay is None else log_decay.expand(q.shape[:3])
    c = torch.unflatten(pad(decay, (0, rest)).cumsum(-1), -1, (-1, chunk))  # (B, H, chunks, C)
    u = torch.cat((v, torch.ones_like(v[..., :1])), -1)
    q, k, u = (torch.unflatten(pad(x, (0, 0, 0, rest)), 2, (-1, chunk)) for x in (q * scale, k, u))
    sums = _near(q, k, u, c, near) + _far(q, k, u, c)
    o: Tensor = (sums[..., :-1] / sums[..., -1:]).flatten(2, 3)[:, :, :tokens]
    return o


def _near(q: Tensor, k: Tensor, u: Tensor, c: Tensor, near: int) -> Tensor:
    """Return the sums over the keys of a query's own chunk and of the one before."""
    chunks, chunk = q.shape[2:4]
    k, u = (torch.cat((pad(x, (0, 0, 0, 0, 1, 0))[:, :, :-1], x), 3) for x in (k, u))
    before = torch.cat((pad(c, (0, 0, 1, 0))[:, :, :-1], c), 3)
    s = q @ k.mT
    distance = chunk + torch.arange(chunk)[:, None] - torch.arange(2 * chunk)
    seen = (distance >= 0) & ((torch.arange(chunks)[:, None, None] > 0) | (torch.arange(2 * chunk) >= chunk))
    weights = torch.where(distance < near, s.exp(), 1 + s + s.square() / 2)
    faded = (c.unsqueeze(-1) - before.unsqueeze(-2)).masked_fill(~seen, -torch.inf)
    return (weights * faded.exp()) @ u


def _far(q: Tensor, k: Tensor, u: Tensor, c: Tensor) -> Tensor:
    """Return the sums over the keys of all chunks but a query's own and the one before."""
    ends = c[..., -1]
    added = (_features(k) * (ends.unsqueeze(-1) - c).exp().unsqueeze(-1)).mT @ u
    states = [torch.zeros_like(added[:, :, 0])] * min(2, added.shape[2])
    for i in range(added.shape[2] - 2):  # of the chunks up to i, as its last token sees them
        fade = (ends[:, :, i] - ends[:, :, i - 1]).exp() if i else torch.ones_like(ends[:, :, 0])
        states.append(states[-1] * fade[..., None, None] + added[:, :, i])
    last = pad(ends, (2, 0))[..., :-2]
    return (_features(q) @ torch.stack(states, 2)) * (c - last.unsqueeze(-1)).exp().unsqueeze(-1)


def _features(x: Tensor) -> Tensor:
    """Return [1, x, x (x) x / sqrt(2)]: products of these are 1 + s + s^2 / 2."""
    squares = (x.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2) * 0.5**0.5
    return torch.cat((torch.ones_like(x[..., :1]), x, squares), -1)


def near_far_layer(near: int) -> type[FastmaxAttention]:
    """Return a layer like FastmaxAttention with this attention; for training, causal."""

    class NearFarAttention(FastmaxAttention):
        _attend = staticmethod(partial(near_far, near=near))

    return NearFarAttention
