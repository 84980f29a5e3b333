"""Forgetting, as the kernels take it: factors per token and per chunk, and sums over a chunk in two floats."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from fastmax.backends.triton.slots import Sequences, Slots
from fastmax.decay import bounded, wide


class Fading(NamedTuple):
    """The decays inside a chunk, (B, Hkv, N): c_t is the sum of log_decay from the start of the chunk to token t."""

    high: Tensor  # c_t, the part of it that a float has
    low: Tensor  # and the rest
    until_here: Tensor  # exp(c_t): what a state fades by until t
    from_here: Tensor  # exp(c_last - c_t): what t fades by until the chunk ends
    of_chunk: Tensor  # (slots, Hkv): exp(c_last)

    def span(self, sequences: int, first: int, chunks: int) -> Tensor:
        """Return `of_chunk` for some chunks of each sequence of a batch."""
        if chunks == 0 or self.of_chunk.shape[0] == sequences * chunks:
            return self.of_chunk
        slots, heads = self.of_chunk.shape
        each = self.of_chunk.view(sequences, slots // sequences, heads)
        return each[:, first : first + chunks].flatten(0, 1).contiguous()  # as the kernels take it


def fading(log_decay: Tensor, sequences: Sequences, chunk: int, slots: Slots) -> Fading:
    """Return the decays by chunk, summed in fp64 on the device. Chunks count from the start of their sequence."""
    tokens = log_decay.shape[2]
    total = bounded(log_decay).to(wide(log_decay.device)).cumsum(-1)
    before = pad(total, (1, 0))
    device = log_decay.device
    at = torch.arange(tokens, device=device)
    if sequences.packed:
        starts, ends = sequences.cu_k[:-1].long(), sequences.cu_k[1:].long()
        own = torch.searchsorted(ends, at, right=True).clamp(max=max(sequences.count - 1, 0))
        begin = starts[own] + (at - starts[own]) // chunk * chunk
        end = torch.minimum(begin + chunk, ends[own])
        owner = slots.owner.clamp(min=0).long()
        slot_begin = starts[owner] + (torch.arange(slots.number, device=device) - slots.first[owner]) * chunk
        slot_end = torch.minimum(slot_begin + chunk, ends[owner])
        slot_begin, slot_end = (x.clamp(0, tokens) for x in (slot_begin, slot_end))
    else:
        begin = at // chunk * chunk
        end = (begin + chunk).clamp(max=tokens)
        slot_begin = torch.arange(slots.per_sequence, device=device) * chunk
        slot_end = (slot_begin + chunk).clamp(max=tokens)
    c = total - before[..., begin]
    high = c.float()
    of_chunk = (before[..., slot_end] - before[..., slot_begin]).exp().transpose(1, 2).flatten(0, 1)
    found = (high, c - high, c.exp(), (before[..., end] - total).exp(), of_chunk)
    return Fading(*(x.float().contiguous() for x in found))
