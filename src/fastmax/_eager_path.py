"""Calls like one before: on the CPU and without gradients, what was checked and chosen for it holds again.

A short attention takes some dozen microseconds, and so does asking in Python what every argument is. The answers depend on
the signature of a call alone: equal signatures, equal answers.
"""

from typing import Any

import torch
from torch import Tensor

from fastmax._torch_private import unwatched
from fastmax.backends import native
from fastmax.call import Problem

Signature = tuple[Any, ...]

MOST = 256
"""Signatures that are remembered; then all are forgotten."""


def signature(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    order: int,
    scale: float | Tensor | None,
    normalize: bool,
    enable_gqa: bool,
    initial_state: Tensor | None,
    return_state: bool,
    dropout_mode: str,
    backend: str,
) -> Signature | None:
    """None where a call must take the long way: it has more to it, somebody watches, or a type is not the usual one."""
    if attn_mask is not None or initial_state is not None or return_state is not False or dropout_mode != "quadratic":
        return None
    if type(dropout_p) is not float or dropout_p != 0:
        return None
    if not (type(is_causal) is type(normalize) is type(enable_gqa) is bool and type(order) is int):
        return None
    if not (scale is None or type(scale) is float) or backend not in ("auto", "native"):
        return None
    if torch.is_autocast_enabled("cpu"):
        return None
    if not unwatched(query, key, value):
        return None
    return (
        query.shape, query.stride(), query.dtype, key.shape, key.stride(), key.dtype, key.device,
        value.shape, value.stride(), value.dtype, value.device, is_causal, order, scale, normalize, enable_gqa, backend,
    )  # fmt: skip


def known(of: Signature) -> native.Prepared | None:
    return native.prepared().get(of)


def remember(of: Signature, problem: Problem) -> None:
    prepared = native.prepare(problem)
    if prepared is None:
        return
    calls = native.prepared()
    if len(calls) >= MOST:
        calls.clear()
    calls[of] = prepared
