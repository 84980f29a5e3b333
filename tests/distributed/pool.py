"""Four ranks on gloo that serve many tests: this process is rank 0, three others wait for functions to call."""

import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import distributed
from torch.distributed import ProcessGroup
from torch.multiprocessing import get_context

SIZE = 4
TIMEOUT = timedelta(minutes=10)  # the machine may be busy with other things


class RankError(Exception):
    """An error that a rank raised, with its message."""


class Pool:
    """`run(size, function, *args)` calls function(group, *args) on the first `size` ranks and returns the results."""

    def __init__(self, folder: Path) -> None:
        context = get_context("spawn")
        self.inboxes = [context.Queue() for _ in range(SIZE - 1)]
        self.results: Any = context.Queue()
        store = str(folder / "store")
        self.processes = [
            context.Process(target=_serve, args=(rank, store, inbox, self.results), daemon=True)
            for rank, inbox in enumerate(self.inboxes, 1)
        ]

        for process in self.processes:
            process.start()
        self.groups = _join(0, store)

    def run(self, size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        for inbox in self.inboxes[: size - 1]:
            inbox.put((size, function, args))
        found = {0: function(self.groups[size], *args)}
        while len(found) < size:
            rank, ok, value = self.results.get(timeout=TIMEOUT.total_seconds())
            if not ok:
                raise RankError(f"rank {rank}: {value}")
            found[rank] = value
        return [found[rank] for rank in range(size)]

    def __enter__(self) -> "Pool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for inbox in self.inboxes:
            inbox.put(None)
        for process in self.processes:
            process.join(20)
            process.kill()
        distributed.destroy_process_group()


def _join(rank: int, store: str) -> dict[int, ProcessGroup]:
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=SIZE, timeout=TIMEOUT)
    groups: dict[int, Any] = {size: distributed.new_group(list(range(size))) for size in range(1, SIZE)}
    return groups | {SIZE: distributed.group.WORLD}


def _serve(rank: int, store: str, inbox: Any, results: Any) -> None:
    torch.set_num_threads(1)
    groups = _join(rank, store)
    while (task := inbox.get()) is not None:
        size, function, args = task
        try:
            results.put((rank, True, function(groups[size], *args)))
        except BaseException:
            traceback.print_exc()  # others may be waiting for this rank, and so may the test
            results.put((rank, False, traceback.format_exc()))
    distributed.destroy_process_group()
