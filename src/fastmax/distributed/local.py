"""The local work of a rank: the ordinary op on some of its tokens, as sums over keys and as pairs (o, g) to be merged."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from fastmax.both_directions import Outputs
from fastmax.call import Call
from fastmax.decay import bounded, wide
from fastmax.distributed.layout import Ends
from fastmax.plan import cheaper_form

Attend = Callable[[Call], Outputs]
Pair = tuple[Tensor, Tensor]
"""o and g, in the dtype of the sums."""


def tokens(call: Call, start: int, stop: int, ends: Ends | None = None) -> Call:
    """Return the call restricted to some tokens of self attention, packed by `ends` if given."""
    at = slice(start, stop)
    cu = None if ends is None else torch.tensor(ends, dtype=torch.int64, device=call.q.device)
    return replace(
        call,
        q=call.q[:, :, at],
        k=call.k[:, :, at],
        v=call.v[:, :, at],
        log_decay=None if call.log_decay is None else call.log_decay[:, :, at],
        key_mask=None if call.key_mask is None else call.key_mask[:, :, at],
        cu_seqlens_q=cu,
        cu_seqlens_k=cu,
        state_in=None,
    )


def state_of(call: Call, attend: Attend, before: Tensor | None = None) -> Tensor:
    """Return the sum over the keys of a call and over those before it, faded to the last key, by a call without queries."""
    cu = call.cu_seqlens_k
    found = replace(
        call,
        q=call.q.new_empty(*call.q.shape[:2], 0, call.head_dim),
        cu_seqlens_q=None if cu is None else torch.zeros_like(cu),
        state_in=before,
        options=call.options._replace(is_causal=call.log_decay is not None, return_state=True),
    )
    return attend(found)[2]


def state_from_the_right(call: Call, attend: Attend) -> Tensor:
    """Return the sum over the keys as seen from the left: key j is faded by all decays up to its own."""
    if call.log_decay is None or call.k.shape[2] == 0:
        return state_of(call, attend)
    # Reversed, a key fades by the decays after its own: moved on by one its own is among them, and the first one left over.
    reversed_decay = call.log_decay.flip(2).roll(1, 2)
    mask = None if call.key_mask is None else call.key_mask.flip(2)
    back = replace(call, k=call.k.flip(2), v=call.v.flip(2), log_decay=reversed_decay, key_mask=mask)
    return state_of(back, attend) * call.log_decay[:, :, 0].exp()[..., None, None]


def total_decay(call: Call) -> Tensor:
    """Return the log_decay that these tokens apply to all before them, (B, Hkv)."""
    if call.log_decay is None:
        return call.k.new_zeros(call.k.shape[:2], dtype=call.dtype)
    return bounded(call.log_decay).to(wide(call.k.device)).sum(2)


def own_pair(call: Call, attend: Attend) -> Pair:
    """Return o and g over the keys of the call itself."""
    o, g, _ = attend(replace(call, options=call.options._replace(return_state=False, out_dtype=call.dtype)))
    return o, g


def read_pair(call: Call, state: Tensor, attend: Attend, fade: Tensor | None = None) -> Pair:
    """Return o and g over the keys in a state that has faded by exp(`fade`), (B, Hkv, Nq), for each query."""
    batch, heads = call.k.shape[:2]
    reading = replace(
        call,
        k=call.k.new_empty(batch, heads, 0, call.head_dim),
        v=call.v.new_empty(batch, heads, 0, call.value_dim),
        log_decay=None,
        key_mask=None,
        cu_seqlens_k=None if call.cu_seqlens_k is None else torch.zeros_like(call.cu_seqlens_k),
        state_in=state,
        options=call.options._replace(is_causal=False),
    )
    o, g = own_pair(reading, attend)
    return o, g if fade is None else g * fade.exp().to(g.dtype).repeat_interleave(call.groups, 1)


def fade_from_the_left(call: Call) -> Tensor | None:
    """Return the sum of decays from the first token to each, (B, Hkv, N)."""
    return None if call.log_decay is None else call.log_decay.to(wide(call.k.device)).cumsum(2)


def fade_from_the_right(call: Call) -> Tensor | None:
    """Return the sum of decays after each token, (B, Hkv, N)."""
    if call.log_decay is None:
        return None
    after = pad(call.log_decay.to(wide(call.k.device)), (0, 1))[:, :, 1:]
    return after.flip(2).cumsum(2).flip(2)


def padded(pair: Pair, before: int, after: int) -> Pair:
    """Pad with queries before and after that see nothing."""
    o, g = pair
    return pad(o, (0, 0, before, after)), pad(g, (before, after))


def may_overlap(call: Call) -> bool:
    """Return True if the local part is dense, so that computing it apart from the state costs nothing more.

    In the factorized form a second reading would cost more than an exchange takes. Pairs are merged by their g, which must
    not vanish: that of odd orders can.
    """
    sizes = call.q.shape[2], call.k.shape[2], call.head_dim, call.value_dim, call.options.order
    return call.dropout_seed is None and call.options.order % 2 == 0 and cheaper_form(*sizes, True) == "dense"
