"""`fastmax-lab bench kernel`: the native kernel against sgemm, softmax attention and plain PyTorch, over a grid of shapes."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from fastmax import fastmax_attention
from fastmax.backends import native
from fastmax.call import Call, Options, OutputGrads
from fastmax.core import default_scale
from fastmax.plan import Plan
from fastmax_lab import _cells
from fastmax_lab._cells import Cell, sgemm_flops
from fastmax_lab._progress import Progress
from fastmax_lab.bench.measure import RoundTimes, interleave, seconds
from fastmax_lab.bench.selection import Selection
from fastmax_lab.measurements import Recorder

THREADS = "threads"
THREADS_TOKENS = 16384
"""The length at which one thread is compared with all."""

LONGEST = 10.0
"""A call that would take longer, in seconds, by the flops of its form at the pace of sgemm is left out."""


FULL_TOKENS = tuple(1 << n for n in range(7, 18))
QUICK_TOKENS = (128, 1024, 8192)


def full_grid(only: Selection) -> Iterator[Cell]:
    """Return eight heads, fewer where a sequence is longer than 16,384."""
    for tokens in only.tokens or FULL_TOKENS:
        for dtype in ("float32", "bfloat16") if only.dtype is None else (only.dtype,):
            for head_dim in only.head_dim or (32, 64, 128):
                for order in (1, 2) if only.order is None else (only.order,):
                    for is_causal in (False, True):
                        for backward in (False, True):
                            heads = max(1, 8 * 16384 // max(tokens, 16384))
                            yield Cell(tokens, head_dim, order, is_causal, backward, dtype, heads)


def quick_grid(only: Selection) -> Iterator[Cell]:
    """Return the corners, with two heads over more than 1,024 tokens to stay within two minutes.

    Unless named, backward passes are left out at order 1 and at short lengths, and bfloat16 is
    measured at order 2 and D = 64 alone.
    """
    for cell in full_grid(replace(only, tokens=only.tokens or QUICK_TOKENS, head_dim=only.head_dim or (32, 64))):
        narrow = cell.dtype == "bfloat16" and only.dtype is None
        if cell.backward and (narrow or cell.order == 1 or cell.tokens <= QUICK_TOKENS[0]):
            continue
        if narrow and (cell.order, cell.head_dim, cell.tokens > QUICK_TOKENS[0]) != (2, 64, True):
            continue
        yield replace(cell, heads=8 if cell.tokens <= 1024 else 2)


def run(record: Recorder, quick: bool, only: Selection | None = None) -> None:
    """Record the grid, or a part of it, and how threads add up."""
    if native.levels() == ():
        raise OSError(f"the native backend is {native.describe()}")
    cells = list((quick_grid if quick else full_grid)(Selection() if only is None else only))
    level = {"level": native.describe()}
    pace = sgemm_flops() / interleave({"sgemm": _sgemm()}, rounds=3)["sgemm"].best
    with Progress(len(cells) + 1) as bar:
        for cell in cells:
            bar.step(f"N = {cell.tokens:,}, D = {cell.head_dim}, order {cell.order}, {cell.dtype}")
            timings = seconds(_measure(cell, pace, quick))
            record.add(cell.name, asdict(cell) | level, {"form": native.form(_call(cell)), "seconds": timings})
        bar.step("threads")
        _threads(record, 2 if quick else 8)


def _threads(record: Recorder, heads: int) -> None:
    """Time the native kernel with one thread and with all, in turns."""
    most = torch.get_num_threads()
    q, k, v = (torch.randn(1, THREADS_TOKENS, heads, 64).transpose(1, 2) for _ in range(3))

    def call(threads: int) -> Callable[[], object]:
        def run() -> None:
            torch.set_num_threads(threads)
            fastmax_attention(q, k, v, backend="native")

        return run

    timings = interleave({"one": call(1), "all": call(most)}, rounds=5)
    torch.set_num_threads(most)
    settings = {"threads": most, "tokens": THREADS_TOKENS, "head_dim": 64, "heads": heads}
    record.add(THREADS, settings, {"seconds": seconds(timings)})


def _measure(cell: Cell, pace: float, quick: bool) -> dict[str, RoundTimes]:
    """Time the contestants in turns, with sgemm before and after each; slow ones have fewer turns."""
    costs = {"sdpa": cell.dense_flops, "dense": cell.dense_flops, "factorized": cell.factorized_flops}
    costs |= {"chunked": 3 * min(cell.dense_flops, cell.factorized_flops)}
    contestants = {name: call for name, call in _contestants(cell).items() if costs.get(name, 0) / pace < LONGEST}
    base = {"sgemm": _sgemm()} | ({"copy": _copy()} if cell.order == 1 else {})
    slow = (0.1, 1) if quick else (1.0, 2)
    return interleave(base | contestants, rounds=3 if quick else 7, least_seconds=0.005, slow=slow, yardstick="sgemm")


def _contestants(cell: Cell) -> dict[str, Callable[[], object]]:
    """Return the contestants, each one forward pass, or one forward and one backward pass."""
    p = _call(cell)
    q, k, v, dtype = p.q, p.k, p.v, p.q.dtype
    do = torch.randn_like(q)

    def kernel(form: str) -> Callable[[], object]:
        def call() -> None:
            o, g, _ = native.forward(p, Plan(form))
            if cell.backward:
                native.backward(p, Plan(form), o, g, OutputGrads(do, None, None))

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


def _call(cell: Cell) -> Call:
    dtype = getattr(torch, cell.dtype)
    # (B, N, H, D) projections, transposed: what models pass
    shape = (1, cell.tokens, cell.heads, cell.head_dim)
    q, k, v = (torch.randn(shape).to(dtype).transpose(1, 2) for _ in range(3))
    scale = default_scale(cell.order, cell.head_dim)
    return Call(q, k, v, options=Options(order=cell.order, is_causal=cell.is_causal, scale=scale, out_dtype=dtype))


def _sgemm() -> Callable[[], object]:
    a, b, c = (torch.randn(_cells.SGEMM, _cells.SGEMM) for _ in range(3))
    return lambda: torch.mm(a, b, out=c)


def _copy() -> Callable[[], object]:
    a, b = torch.randn(_cells.COPY), torch.empty(_cells.COPY)
    return lambda: b.copy_(a)
