"""The sharding rules of the op on DTensors: by batch and by heads without communication, by tokens not at all.

Importing this module registers them. A sequence that is sharded goes through `context_parallel_attention`. If the op itself
is called with such DTensors, DTensor gathers them first, as it does where no rule fits.
"""

from typing import Any

import torch
from torch.distributed.tensor import Partial, Placement, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from fastmax import ops  # noqa: F401  (registers the ops)
from fastmax.call import TENSORS, InputGrads, Options

_BATCH, _HEADS = 0, 1
_OUTPUTS = ("o", "g", "state")
_GRADS = ("do", "dg", "d_state")
_EVERYWHERE = ("cu_seqlens_q", "cu_seqlens_k", "dropout_seed")

Rule = tuple[list[Placement | None], list[Placement | None]]


def _given(names: tuple[str, ...], values: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(names, values, strict=False))


def _dims(given: dict[str, Any]) -> list[int]:
    """Return the dimensions by which a call may be cut into parts that are computed alone, with equal numbers."""
    if given["dropout_seed"] is not None:  # masks are a function of the place in the whole batch
        return []
    return [_HEADS] if given["cu_seqlens_q"] is not None else [_BATCH, _HEADS]


def _placement(name: str, x: Any, dim: int) -> Placement | None:
    """Return the placement of one tensor of a call that is cut by a dimension."""
    if x is None:
        return None
    if name in _EVERYWHERE or len(x.shape) < 2 or (name == "key_mask" and dim == _HEADS and x.shape[1] == 1):
        return Shard(0) if name == "head_scale" and dim == _HEADS else Replicate()
    return Shard(dim)


def _rules(outputs: list[str], given: dict[str, Any], of_output: Any, rest: int) -> list[Rule]:
    whole: list[Placement | None] = [None if x is None else Replicate() for x in given.values()]
    rules: list[Rule] = [([Replicate() for _ in outputs], whole + [None] * rest)]
    for dim in _dims(given):
        inputs: list[Placement | None] = [_placement(name, x, dim) for name, x in given.items()]
        rules.append(([of_output(name, dim) for name in outputs], inputs + [None] * rest))
    return rules


@register_sharding(torch.ops.fastmax.forward.default)  # type: ignore[untyped-decorator]
def _forward(*values: Any) -> list[Rule]:
    given = _given(TENSORS, values)
    options = Options(*values[len(TENSORS) :])

    def of_output(name: str, dim: int) -> Placement:
        return Replicate() if name == "state" and not options.return_state else Shard(dim)

    return _rules(list(_OUTPUTS), given, of_output, len(values) - len(TENSORS))


@register_sharding(torch.ops.fastmax.backward.default)  # type: ignore[untyped-decorator]
def _backward(*values: Any) -> list[Rule]:
    names = (*_OUTPUTS, *_GRADS, *TENSORS)
    given = _given(names, values)

    def of_output(name: str, dim: int) -> Placement:
        if given[name] is None:
            return Replicate()
        if name == "head_scale":
            return Shard(0) if dim == _HEADS else Partial()
        return Shard(dim)

    return _rules(list(InputGrads._fields), given, of_output, len(values) - len(names))
