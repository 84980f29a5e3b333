"""`fastmax-lab bench distributed`: bytes and time of a sequence over 1, 2 and 4 processes, and the cost model beside them.

The processes share the cores of one machine, so their times measure the work, not the speed of many machines.
"""

import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed
from torch.multiprocessing import spawn  # type: ignore[attr-defined]

from fastmax.distributed import context_parallel_attention
from fastmax_lab._progress import Progress
from fastmax_lab.bench import ring
from fastmax_lab.bench.traffic import Traffic
from fastmax_lab.measurements import Recorder, slug

HEADS, HEAD_DIM = 4, 32
WORLDS = (1, 2, 4)
TOKENS = (4096, 16384)
PAPER_WORLDS = (1, 8, 64, 1024)
PAPER_TOKENS = (10**6, 10**9)
RESULT = "cells.json"
ON_PAPER = "on-paper"


def run(record: Recorder, quick: bool) -> None:
    """Time causal attention of order 2, fp32, forward + backward; tokens of all processes together."""
    rounds = 3 if quick else 7
    with Progress(len(WORLDS)) as bar:
        for world in WORLDS:
            bar.step(f"{world} processes")
            lengths = TOKENS[:1] if quick else TOKENS
            for tokens, values in zip(lengths, _measured(world, lengths, rounds), strict=True):
                settings = {"world": world, "tokens": tokens, "heads": HEADS, "head_dim": HEAD_DIM, "order": 2}
                record.add(slug(world, "processes", tokens), settings, values)
    on_paper = {"tokens": PAPER_TOKENS, "worlds": PAPER_WORLDS}
    record.add(ON_PAPER, on_paper, ring.model(PAPER_TOKENS, PAPER_WORLDS))


def _measured(world: int, tokens: tuple[int, ...], rounds: int) -> list[dict[str, Any]]:
    """Measure in separate processes. One that dies is an error, not a wait."""
    with tempfile.TemporaryDirectory() as folder:
        with _deaf_children():
            processes = spawn(_rank, (world, folder, tokens, rounds), nprocs=world, join=False)  # type: ignore[no-untyped-call]
        try:
            while not processes.join():
                pass
        finally:  # Ctrl-C is for this process, which then ends its children
            for process in processes.processes:
                process.kill()
        found: list[dict[str, Any]] = json.loads((Path(folder) / RESULT).read_text())
    return found


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Let processes that start in this context ignore Ctrl-C, which a terminal sends to all: each would print a traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _rank(rank: int, world: int, folder: str, tokens: tuple[int, ...], rounds: int) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=world, timeout=timedelta(minutes=5))
    cells = [cell(world, n, rounds) for n in tokens]
    if rank == 0:
        (Path(folder) / RESULT).write_text(json.dumps(cells))
    distributed.destroy_process_group()
    # A dispatch mode that has seen collectives, as Traffic has, leaves a reference to their group: gloo's threads go on, and
    # one that lets go of a tensor while the interpreter ends would abort the process.
    os._exit(0)


def cell(world: int, tokens: int, rounds: int) -> dict[str, Any]:
    """Measure in every process of the group; report what the first measures."""
    group = distributed.group.WORLD
    assert group is not None
    q, k, v = (torch.randn(1, HEADS, tokens // world, HEAD_DIM, requires_grad=True) for _ in range(3))

    def step() -> Tensor:
        o = context_parallel_attention(q, k, v, is_causal=True, mesh=group)
        torch.autograd.grad(o, (q, k, v), torch.ones_like(o))
        return o

    step()
    wall, busy = [], []
    for _ in range(rounds):
        distributed.barrier()
        start, cpu = time.perf_counter(), time.process_time()
        step()
        busy.append(time.process_time() - cpu)
        distributed.barrier()
        wall.append(time.perf_counter() - start)
    with Traffic(world) as traffic:
        step()
    layer = ring.RingLayer(HEADS, HEADS, HEAD_DIM)
    return {
        "seconds": statistics.median(wall),
        "processor_seconds": statistics.median(busy),
        "received": traffic.received,
        # forward and backward: a ring sends keys and values, then those again with their gradients
        "ring_received": 3 * ring.ring_received(layer, tokens, world),
    }
