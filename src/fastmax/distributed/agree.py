"""Ranks compare their calls before they exchange anything else: all go on, or all raise one error.

A rank that raised alone would leave the others waiting for it. So each rank first sends a few numbers: a digest of
what must be equal, its counts of tokens, and whether it refuses. Only if something is wrong do the ranks send text.
"""

from hashlib import blake2b
from typing import Any, NamedTuple

import torch
from torch import distributed
from torch.distributed import ProcessGroup

from fastmax.distributed.wire import start_gather, wait_for

_FINE, _REFUSED = 1, 0


class Statement(NamedTuple):
    """The statement of a rank about its call: what must be equal on all ranks, or its refusal, and its lengths."""

    common: dict[str, Any]
    refusal: str | None
    counts: tuple[int, ...]


class Agreement:
    """Under way from the moment it is made, so that work which needs no answer can be done before `wait`."""

    def __init__(self, own: Statement, group: ProcessGroup, device: torch.device) -> None:
        self.own, self.group = own, group
        digest = int.from_bytes(blake2b(repr(own.common).encode(), digest_size=8).digest(), "little", signed=True)
        state = _FINE if own.refusal is None else _REFUSED
        numbers = torch.tensor([state, digest, *own.counts], dtype=torch.int64, device=device)
        self.answers, self.works = start_gather(numbers, group)

    def wait(self) -> list[tuple[int, ...]]:
        """Return the counts of every rank. Every rank raises ValueError if one refuses or two differ."""
        wait_for(self.works, self.group)
        found = torch.stack(self.answers).tolist()
        if any(state != _FINE for state, *_ in found) or len({digest for _, digest, *_ in found}) > 1:
            words: list[Any] = [None] * self.group.size()
            distributed.all_gather_object(words, self.own, self.group)
            raise ValueError(disagreement([Statement(*word) for word in words]))
        return [tuple(counts) for _, _, *counts in found]


def disagreement(said: list[Statement]) -> str:
    """Return one message for every rank: which ranks refuse, else where they differ."""
    refusals = {rank: statement.refusal for rank, statement in enumerate(said) if statement.refusal is not None}
    if refusals:
        reasons = sorted(set(refusals.values()), key=list(refusals.values()).index)
        if len(refusals) == len(said) and len(reasons) == 1:
            return reasons[0]
        return "; ".join(f"refused on {_ranks(refusals, reason)}: {reason}" for reason in reasons)
    different = []
    for name in said[0].common:
        values = [repr(statement.common.get(name)) for statement in said]
        if len(set(values)) > 1:
            by_value = {value: [rank for rank, other in enumerate(values) if other == value] for value in values}
            shown = ", ".join(f"{value} on {_listed(ranks)}" for value, ranks in by_value.items())
            different.append(f"{name} is {shown}")
    return f"all ranks that share a sequence must be called with equal arguments, but {'; '.join(different)}"


def _ranks(refusals: dict[int, str], reason: str) -> str:
    return _listed([rank for rank, other in refusals.items() if other == reason])


def _listed(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}"
