"""`fastmax bench kernel`: the native kernel against sgemm, softmax attention and plain PyTorch, over a grid of shapes."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from fastmax import fastmax_attention
from fastmax._progress import Progress
from fastmax.backends import native
from fastmax.bench.measure import Timing, interleave, seconds, write
from fastmax.call import OutputGrads, Problem
from fastmax.core import default_scale
from fastmax.features import feature_count
from fastmax.report import kernel as report

SGEMM = 1024
"""Side of the square matrices whose product sets the pace."""

COPY = 1 << 24
"""Elements of the fp32 array whose copy sets the pace of what is bound by memory."""

THREADS_TOKENS = 16384
"""The length at which one thread is compared with all."""

LONGEST = 10.0
"""A call that would take longer, in seconds, by the flops of its form at the pace of sgemm is left out."""


@dataclass(frozen=True)
class Cell:
    """One point of the grid."""

    tokens: int
    head_dim: int
    order: int
    is_causal: bool
    backward: bool
    dtype: str = "float32"
    heads: int = 8

    @property
    def factorized_flops(self) -> float:
        """4 N F (Dv + 1) per head, and N C (D + Dv) for the dense part inside causal chunks of C tokens."""
        per_token = 4.0 * feature_count(self.head_dim, self.order) * (self.head_dim + 1)
        if self.is_causal:
            chunk = 64 if self.head_dim <= 32 or self.order == 1 else 128  # as rule.causal_chunk
            per_token += 2.0 * chunk * self.head_dim
        return per_token * self.tokens * self.heads * (3.5 if self.backward else 1)

    @property
    def dense_flops(self) -> float:
        """2 N^2 (D + Dv) per head, half of it if causal."""
        dense = 4.0 * self.tokens**2 * self.head_dim * self.heads * (3.5 if self.backward else 1)
        return dense / 2 if self.is_causal else dense


def full_grid() -> Iterator[Cell]:
    """Eight heads, fewer where a sequence is longer than 16,384."""
    for n in range(7, 18):
        for dtype in ("float32", "bfloat16"):
            for head_dim in (32, 64, 128):
                for order in (1, 2):
                    for is_causal in (False, True):
                        for backward in (False, True):
                            heads = max(1, 8 * 16384 // max(1 << n, 16384))
                            yield Cell(1 << n, head_dim, order, is_causal, backward, dtype, heads)


def quick_grid() -> Iterator[Cell]:
    """The corners, with two heads over 8,192 tokens to stay within two minutes."""
    for tokens, heads in ((128, 8), (1024, 8), (8192, 2)):
        for head_dim in (32, 64):
            for order in (1, 2):
                for is_causal in (False, True):
                    for backward in (False, True):
                        if not backward or (order == 2 and tokens > 128):
                            yield Cell(tokens, head_dim, order, is_causal, backward, heads=heads)
    for is_causal in (False, True):
        yield Cell(1024, 64, 2, is_causal, False, "bfloat16")
        yield Cell(8192, 64, 2, is_causal, False, "bfloat16", heads=2)


def run(
    out: str | None,
    quick: bool,
    tokens: list[int] | None = None,
    dtype: str | None = None,
    order: int | None = None,
    head_dim: list[int] | None = None,
) -> None:
    """Measure the grid, or a part of it, and how threads add up; print the tables, write the JSON."""
    if native.levels() == ():
        raise SystemExit(f"fastmax bench kernel: the native backend is {native.describe()}")
    cells = [
        cell
        for cell in (quick_grid() if quick else full_grid())
        if (tokens is None or cell.tokens in tokens)
        and (head_dim is None or cell.head_dim in head_dim)
        and dtype in (None, cell.dtype)
        and order in (None, cell.order)
    ]
    measured: dict[str, Any] = {"level": native.describe(), "cells": []}
    pace = 2 * SGEMM**3 / interleave({"sgemm": _sgemm()}, rounds=3)["sgemm"].best
    with Progress(len(cells) + 1) as bar:
        for cell in cells:
            bar.step(f"N = {cell.tokens:,}, D = {cell.head_dim}, order {cell.order}, {cell.dtype}")
            measured["cells"].append(asdict(cell) | {"seconds": seconds(_measure(cell, pace, quick))})
            write(out, measured)
        bar.step("threads")
        measured["threads"] = _threads(2 if quick else 8)
        write(out, measured)
    print(report.summary(measured))


def _threads(heads: int) -> dict[str, Any]:
    """The native kernel with one thread and with all, in turns."""
    most = torch.get_num_threads()
    q, k, v = (torch.randn(1, THREADS_TOKENS, heads, 64).transpose(1, 2) for _ in range(3))

    def call(threads: int) -> Callable[[], object]:
        def run() -> None:
            torch.set_num_threads(threads)
            fastmax_attention(q, k, v, backend="native")

        return run

    timings = interleave({"one": call(1), "all": call(most)}, rounds=5)
    torch.set_num_threads(most)
    return {"threads": most, "tokens": THREADS_TOKENS, "head_dim": 64, "heads": heads, "seconds": seconds(timings)}


def _measure(cell: Cell, pace: float, quick: bool) -> dict[str, Timing]:
    """Its contestants in turns; slow ones have fewer."""
    costs = {"sdpa": cell.dense_flops, "dense": cell.dense_flops, "factorized": cell.factorized_flops}
    costs |= {"chunked": 3 * min(cell.dense_flops, cell.factorized_flops)}
    contestants = {name: call for name, call in _contestants(cell).items() if costs.get(name, 0) / pace < LONGEST}
    base = {"sgemm": _sgemm()} | ({"copy": _copy()} if cell.order == 1 else {})
    slow = (0.1, 1) if quick else (1.0, 2)
    return interleave(base | contestants, rounds=3 if quick else 7, least_seconds=0.005, slow=slow)


def _contestants(cell: Cell) -> dict[str, Callable[[], object]]:
    """Each one forward pass, or one forward and one backward pass."""
    dtype = getattr(torch, cell.dtype)
    # (B, N, H, D) projections, transposed: what models pass
    shape = (1, cell.tokens, cell.heads, cell.head_dim)
    q, k, v, do = (torch.randn(shape).to(dtype).transpose(1, 2) for _ in range(4))
    scale = default_scale(cell.order, cell.head_dim)
    p = Problem(q, k, v, cell.order, cell.is_causal, True, scale, False, dtype)

    def kernel(form: str) -> Callable[[], object]:
        def call() -> None:
            o, g, _ = native.forward(p, form=form)
            if cell.backward:
                native.backward(p, o, g, OutputGrads(do, None, None), form=form)

        return call

    def op(f: Callable[..., Tensor], to: torch.dtype = dtype, **options: Any) -> Callable[[], object]:
        leaves = [x.detach().to(to).requires_grad_(cell.backward) for x in (q, k, v)]
        grad = do.to(to)

        def call() -> None:
            o = f(*leaves, is_causal=cell.is_causal, **options)
            if cell.backward:
                torch.autograd.grad(o, leaves, grad)

        return call

    wider = {} if dtype == torch.float32 else {"float32": op(fastmax_attention, torch.float32, order=cell.order)}
    return {
        "sdpa": op(scaled_dot_product_attention),
        "chunked": op(fastmax_attention, order=cell.order, backend="chunked"),
        "dense": kernel("dense"),
        "factorized": kernel("factorized"),
        "native": op(fastmax_attention, order=cell.order, backend="native"),
        **wider,
    }


def _sgemm() -> Callable[[], object]:
    a, b, c = (torch.randn(SGEMM, SGEMM) for _ in range(3))
    return lambda: torch.mm(a, b, out=c)


def _copy() -> Callable[[], object]:
    a, b = torch.randn(COPY), torch.empty(COPY)
    return lambda: b.copy_(a)
