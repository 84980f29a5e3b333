"""Collectives that are started first and waited for later, with an error that explains a lost rank."""

from collections.abc import Iterable

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup, Work


def start_gather(x: Tensor, group: ProcessGroup) -> tuple[list[Tensor], list[Work]]:
    """Return room for the tensor of every rank, and the work to wait for until it is filled."""
    room = [torch.empty_like(x) for _ in range(group.size())]
    return room, _started(distributed.all_gather(room, x, group=group, async_op=True))


def start_passing(
    x: Tensor, to: int | None, source: int | None, group: ProcessGroup
) -> tuple[Tensor | None, list[Work]]:
    """Send to one rank and receive as much from another; either may be missing."""
    arriving, works = None, []
    if to is not None:
        works += _started(distributed.isend(x, group=group, group_dst=to))
    if source is not None:
        arriving = torch.empty_like(x)
        works += _started(distributed.irecv(arriving, group=group, group_src=source))
    return arriving, works


def summed(x: Tensor, group: ProcessGroup) -> Tensor:
    x = x.clone(memory_format=torch.contiguous_format)
    wait_for(_started(distributed.all_reduce(x, group=group, async_op=True)), group)
    return x


def from_last(x: Tensor, group: ProcessGroup) -> Tensor:
    x = x.clone(memory_format=torch.contiguous_format)
    wait_for(_started(distributed.broadcast(x, group=group, group_src=group.size() - 1, async_op=True)), group)
    return x


def wait_for(works: Iterable[Work], group: ProcessGroup) -> None:
    """Wait for the work. Raise RuntimeError if another rank has died or the timeout of the group has passed."""
    try:
        for work in works:
            work.wait()
    except RuntimeError as error:
        raise RuntimeError(
            f"rank {group.rank()} of the {group.size()} that share a sequence lost the connection to another rank, which has "
            "died, is unreachable, or was busy for longer than the timeout of the process group: restart all ranks from the "
            f"last checkpoint ({error})"
        ) from error


def _started(work: Work | None) -> list[Work]:
    return [] if work is None else [work]
