"""The interface between a layer that has a shard of a sequence and the processes that share it."""

from typing import Any, Protocol

import torch
from torch import Tensor


class Sequence(Protocol):
    """The sequence of a layer under `fastmax.distributed.parallelize`. A layer without one has all tokens."""

    @property
    def is_first(self) -> bool:
        """Return True if the first token of the sequence is on this process."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, **options: Any) -> Tensor:
        """Run `fastmax_attention` over all shards."""

    def starts(self, lengths: tuple[int, ...], device: torch.device) -> list[int]:
        """Return where shards of these lengths begin in their whole sequences."""

    def before(self, x: Tensor, count: int) -> Tensor:
        """Return the tokens right before those of x, (B, N, E), as (B, count, E); zeros before the first of all."""

    def total(self, x: Tensor) -> Tensor:
        """Return the sum over the shards, with its gradient."""


class SharesSequence:
    """A module that accepts a shard of a sequence."""

    sequence: Sequence | None = None  # set if the tokens are a shard


def check(query: Tensor, need_weights: bool, attn_mask: Tensor | None, state: object) -> None:
    """Refuse what a layer with a shard of the tokens cannot compute."""
    if need_weights:
        raise ValueError("a layer with a shard of the tokens has no weights: need_weights must be False")
    if attn_mask is not None:
        raise ValueError("a layer with a shard of the tokens takes no attn_mask: use is_causal and key_padding_mask")
    if state is not None:
        raise ValueError(
            "a layer whose sequence is shared by several processes does not decode: parallelize(model, None) undoes it"
        )
    if query.is_nested:
        raise ValueError("a nested tensor has no shard: pad it and pass key_padding_mask")
