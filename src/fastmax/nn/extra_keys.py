"""Keys that every query sees under any mask: those of add_bias_kv and add_zero_attn."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad


def prepend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    extra_keys: Sequence[Tensor],
    extra_values: Sequence[Tensor],
    is_causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Put the extra keys and values, (1, heads, 1, D) each, before the rest.

    When causal, as many queries of zeros come first too, so that query i still sees the keys up to i; their results are to
    be dropped. An initial state would do as well, but every query would then read it, which short sequences need not do.
    """
    extra = len(extra_keys)
    k = torch.cat([*(x.to(k.dtype).expand(k.shape[0], -1, -1, -1) for x in extra_keys), k], 2)
    v = torch.cat([*(x.to(v.dtype).expand(v.shape[0], -1, -1, -1) for x in extra_values), v], 2)
    if mask is not None:
        mask = pad(mask, (extra, 0), value=True)
    if is_causal:
        q = pad(q, (0, 0, extra, 0))
    return q, k, v, mask
