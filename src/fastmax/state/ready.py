"""A step of decoding that is like the last one: what it was prepared for, and how to tell."""

from typing import Any, NamedTuple

from torch import Tensor

from fastmax.state.decode import Step
from fastmax.state.recent import Recent


class Ready(NamedTuple):
    """A step in place, and what it was prepared for."""

    like: Any
    step: Step
    room: Recent
    total: Tensor | None
    scale: float | Tensor
    zeros: Tensor | None  # the decay of a token that has none, beside others
    is_inference: bool


def like(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor | None) -> Any:
    """What a prepared step depends on. Tensors of equal shapes, strides and dtypes need no second check."""
    tokens = (
        query.shape, query.stride(), query.dtype, query.device, key.shape, key.stride(), key.dtype, key.device,
        value.shape, value.stride(), value.dtype, value.device,
    )  # fmt: skip
    if log_decay is None:
        return tokens
    return (*tokens, log_decay.shape, log_decay.stride(), log_decay.dtype, log_decay.device)
