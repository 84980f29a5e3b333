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
        query.shape, query.stride(), query.dtype, key.shape, key.stride(), key.dtype,
        value.shape, value.stride(), value.dtype,
    )  # fmt: skip
    return tokens if log_decay is None else (*tokens, log_decay.shape, log_decay.stride(), log_decay.dtype)
