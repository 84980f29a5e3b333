"""Forgetting without causality: exp(-|c_i - c_j|) as two causal calls, one of them backward, whose sums are added.

The first call has the keys j <= i. The second walks from the last token to the first and has the keys j > i: it is causal on
reversed tokens whose keys are moved on by one, so that no query sees its own key twice.

    o_i = (f_i + f'_i) / (g_i + g'_i)
"""

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from operator import add

import torch
from torch import Tensor

from fastmax.call import Call

Outputs = tuple[Tensor, Tensor, Tensor]


def attend_both_ways(call: Call, attend: Callable[[Call], Outputs]) -> Outputs:
    """Return o, g and no state of a call that is not causal, from two causal ones. Each draws its own dropout masks."""
    assert call.log_decay is not None
    assert call.options.out_dtype is not None
    causal = replace(call, options=call.options._replace(is_causal=True, out_dtype=call.dtype))
    o, g, state = attend(causal)
    # from key j = m - 1 to query i, reversed, the decays of j + 1 .. i count: the call has m + 1 .. i moved on by one
    onward = _moved_on(call.log_decay.flip(2))
    first = _first_tokens(call)
    back = replace(
        causal,
        q=call.q.flip(2),
        k=_moved_on(call.k.flip(2)),
        v=_moved_on(call.v.flip(2)),
        log_decay=_moved_on(onward),
        key_mask=~first if call.key_mask is None else _moved_on(call.key_mask.flip(2)) & ~first,
        cu_seqlens_q=_reversed(call.cu_seqlens_q),
        cu_seqlens_k=_reversed(call.cu_seqlens_k),
        dropout_seed=None if call.dropout_seed is None else call.dropout_seed + 1,
    )
    o_back, g_back, _ = attend(back)
    g_back = g_back * onward.exp().repeat_interleave(call.groups, 1)
    o_back, g_back = o_back.flip(2), g_back.flip(2)
    o, total = merged((o, g), (o_back, g_back))
    return o.to(call.options.out_dtype), total, state


def merged(*parts: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Merge o and g over several sets of keys: the sum of f = o g, divided by that of g."""
    total = reduce(add, [g for _, g in parts])
    safe = torch.where(total == 0, 1, total)
    return reduce(add, [o * (g / safe).unsqueeze(-1) for o, g in parts]), total


def _moved_on(x: Tensor) -> Tensor:
    """Shift by one token. The value at the first token of a sequence comes from another one and must not count."""
    return x.roll(1, 2)


def _first_tokens(call: Call) -> Tensor:
    """Return (B, 1, N), True at the first token of each reversed sequence."""
    batch, _, tokens, _ = call.k.shape
    first = torch.zeros(batch, 1, tokens, dtype=torch.bool, device=call.k.device)
    if call.cu_seqlens_k is None:
        first[:, :, :1] = True
        return first
    starts = tokens - call.cu_seqlens_k[1:].to(torch.int64)
    # an empty sequence may start behind the last token
    marks = torch.zeros(tokens + 1, dtype=torch.bool, device=call.k.device)
    return (first | marks.index_fill(0, starts, True)[:tokens]).contiguous()


def _reversed(cu_seqlens: Tensor | None) -> Tensor | None:
    return None if cu_seqlens is None else (cu_seqlens[-1:] - cu_seqlens).flip(0)
