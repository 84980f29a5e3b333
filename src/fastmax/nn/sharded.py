"""The interface between a layer that has a shard of a sequence and the processes that share it."""

from typing import Any, Protocol

import torch
from torch import Tensor


class Sequence(Protocol):
    """Held by a layer that was told so by `fastmax.distributed.parallelize`; a layer without one has all tokens."""

    @property
    def is_first(self) -> bool:
        """Return True if the first token of the sequence is on this process."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, **options: Any) -> Tensor:
        """`fastmax_attention` over all shards."""

    def starts(self, lengths: tuple[int, ...], device: torch.device) -> list[int]:
        """Return where shards of these lengths begin in their whole sequences."""

    def before(self, x: Tensor, count: int) -> Tensor:
        """(B, count, E): the tokens right before those of x, (B, N, E); zeros before the first of all."""

    def total(self, x: Tensor) -> Tensor:
        """Return the sum over the shards, with its gradient."""


class SharesSequence:
    """A module that knows what to do with a shard."""

    sequence: Sequence | None = None  # where the tokens are a shard of those of several processes


def check(query: Tensor, need_weights: bool, attn_mask: Tensor | None, state: object) -> None:
    """Refuse what a layer that has only some of the tokens cannot give."""
    if need_weights:
        raise ValueError("weights are of all tokens, and this layer has a shard of them: need_weights must be False")
    if attn_mask is not None:
        raise ValueError(
            "attn_mask is of all tokens, and this layer has a shard of them: use is_causal and key_padding_mask instead"
        )
    if state is not None:
        raise ValueError(
            "a layer whose sequence is shared by several processes does not decode: parallelize(model, None) undoes it"
        )
    if query.is_nested:
        raise ValueError("a nested tensor has no shard: pad it and pass key_padding_mask")
