"""`fastmax-lab bench kernel --device cuda`: the Triton backend beside softmax attention, and the compile time."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from fastmax import fastmax_attention
from fastmax.backends import triton
from fastmax.core import default_scale
from fastmax_lab._cells import Cell
from fastmax_lab._progress import Progress
from fastmax_lab.measurements import Recorder

ROUNDS = 20
MAX_SECONDS = 10.0
"""A contestant sits out once its rounds have taken so long."""

FLUSHED = 256 << 20
"""Bytes written before each round, so that nothing is in the cache from the last one."""


def cells(
    tokens: tuple[int, ...], head_dims: tuple[int, ...], orders: tuple[int, ...], dtypes: tuple[str, ...]
) -> Iterator[Cell]:
    """Return the cells: causal, 16 heads, forward and with backward."""
    for n in tokens:
        for head_dim in head_dims:
            for order in orders:
                for dtype in dtypes:
                    for backward in (False, True):
                        yield Cell(n, head_dim, order, True, backward, dtype, 16)


def run(record: Recorder, chosen: list[Cell], rounds: int = ROUNDS) -> None:
    """Measure every cell: the first call, with compilation, and the median of the rounds, in ms."""
    if not torch.cuda.is_available():
        raise OSError("--device cuda needs a GPU that torch can use, and there is none")
    _on_this_gpu(record, chosen, rounds)  # pragma: no cover  (needs one)


def _on_this_gpu(record: Recorder, chosen: list[Cell], rounds: int) -> None:  # pragma: no cover
    gpu = {"gpu": torch.cuda.get_device_name(), "triton": triton.describe()}
    with Progress(len(chosen)) as bar:
        for cell in chosen:
            bar.step(f"N = {cell.tokens:,}, D = {cell.head_dim}, order {cell.order}, {cell.dtype}")
            record.add(cell.name, asdict(cell) | gpu, measure(cell, rounds))


def measure(cell: Cell, rounds: int, device: str = "cuda", max_seconds: float = MAX_SECONDS) -> dict[str, Any]:
    contestants = _contestants(cell, device)
    start = time.perf_counter()
    contestants["triton"]()
    _wait(device)
    first = time.perf_counter() - start
    junk = torch.empty(FLUSHED if device == "cuda" else 1, dtype=torch.int8, device=device)
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, call in contestants.items():
            if sum(seconds[name]) < max_seconds:
                junk.zero_()
                seconds[name].append(_seconds(call, device))
    return {"first_call": first, "seconds": {name: statistics.median(each) for name, each in seconds.items()}}


def _contestants(cell: Cell, device: str) -> dict[str, Callable[[], object]]:
    dtype = getattr(torch, cell.dtype)
    shape = (1, cell.tokens, cell.heads, cell.head_dim)
    q, k, v, do = (torch.randn(shape, dtype=dtype, device=device).transpose(1, 2) for _ in range(4))

    def op(f: Callable[..., Tensor], **options: Any) -> Callable[[], object]:
        leaves = [x.detach().requires_grad_(cell.backward) for x in (q, k, v)]

        def call() -> None:
            o = f(*leaves, is_causal=cell.is_causal, **options)
            if cell.backward:
                torch.autograd.grad(o, leaves, do)

        return call

    scale = default_scale(cell.order, cell.head_dim)
    backend = "triton" if device == "cuda" else "auto"
    return {
        "triton": op(fastmax_attention, order=cell.order, scale=scale, backend=backend),
        "chunked": op(fastmax_attention, order=cell.order, scale=scale, backend="chunked"),
        "sdpa": op(scaled_dot_product_attention),
    }


def _seconds(call: Callable[[], object], device: str) -> float:
    if device != "cuda":
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
    return _seconds_on_a_gpu(call)  # pragma: no cover  (needs one)


def _seconds_on_a_gpu(call: Callable[[], object]) -> float:  # pragma: no cover
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()  # pragma: no cover
