"""`fastmax-lab tune`: tiles that are faster on this GPU than those of the table, to be reported; nothing is changed."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import torch

from fastmax.backends.triton import both_passes
from fastmax.backends.triton.device import architecture
from fastmax.backends.triton.tiles import Tiles, padded, tiles_for
from fastmax.backends.triton.work import Launch
from fastmax.call import Call, InputGrads, Options, OutputGrads
from fastmax.core import default_scale
from fastmax.plan import Plan

CHOICES: dict[str, tuple[int, ...]] = {
    "chunk": (128, 256, 512, 1024, 2048),
    "block": (16, 32),
    "sums": (2, 4, 8, 16),
    "tokens": (32, 64, 128),
    "unroll": (1, 2, 4, 8),
    "rows": (64, 128),
    "columns": (32, 64, 128),
    "vjp_unroll": (1, 2, 4, 8),
    "vjp_rows": (32, 64, 128),
    "vjp_columns": (32, 64),
    "warps": (2, 4, 8),
    "sum_warps": (1, 2, 4, 8),
    "vjp_warps": (2, 4, 8),
    "stages": (1, 2, 3),
    "vjp_stages": (1, 2, 3),
}


def neighbours(tiles: Tiles, head_dim: int) -> Iterator[Tiles]:
    """Yield tiles with one number changed, for heads of so many padded channels."""
    for name, values in CHOICES.items():
        for value in values:
            other = replace(tiles, **{name: value})
            of_block = max(other.sums, other.unroll) <= other.block <= head_dim
            if value != getattr(tiles, name) and of_block and other.chunk % other.longest == 0:
                yield other


def tuned(
    tiles: Tiles, head_dim: int, seconds: Callable[[Tiles], float | None], gain: float = 0.97
) -> tuple[Tiles, float, float]:
    """Improve number by number, greedily. Return the best tiles, their time and that of the first. None: they do not run."""
    first = seconds(tiles)
    if first is None:
        raise ValueError("the tiles of the table do not run on this GPU; please report it")
    best, least = tiles, first
    for name in CHOICES:
        for other in neighbours(best, head_dim):
            if getattr(other, name) == getattr(best, name):
                continue
            taken = seconds(other)
            if taken is not None and taken < gain * least:
                best, least = other, taken
    return best, least, first


def row(arch: str, head_dim: int, dtype: str, before: Tiles, found: Tiles, taken: float, first: float) -> str:
    """Return a line to report: the difference from the table."""
    changed = {
        f.name: getattr(found, f.name) for f in fields(Tiles) if getattr(found, f.name) != getattr(before, f.name)
    }
    if not changed:
        return f"{arch}, D = {head_dim}, {dtype}: nothing is faster than the table's {before}"
    text = ", ".join(f"{name}={value}" for name, value in changed.items())
    return f"{arch}, D = {head_dim}, {dtype}: {text} takes {1000 * taken:.2f} ms, the table's {1000 * first:.2f} ms"


def run(head_dim: int, dtype: str, tokens: int, heads: int) -> str:
    """Tune forward and backward of a causal call, order 2, on this GPU."""
    if not torch.cuda.is_available():
        raise OSError("it needs a GPU that torch can use, and there is none")
    return _on_this_gpu(head_dim, dtype, tokens, heads)  # pragma: no cover  (needs one)


def _on_this_gpu(head_dim: int, dtype: str, tokens: int, heads: int) -> str:  # pragma: no cover
    kind = getattr(torch, dtype)
    q, k, v, do = (torch.randn(1, heads, tokens, head_dim, dtype=kind, device="cuda") for _ in range(4))
    call = Call(q, k, v, options=Options(is_causal=True, scale=default_scale(2, head_dim), out_dtype=kind))
    arch = architecture(q.device)
    products = torch.bfloat16 if kind == torch.bfloat16 else torch.float32
    before = tiles_for(arch, padded(head_dim), padded(head_dim), 2, products)
    best, taken, first = tuned(
        before, padded(head_dim), lambda tiles: attempted(lambda: _seconds(call, arch, tiles, do))
    )
    return row(arch, head_dim, dtype, before, best, taken, first)


def attempted(run: Callable[[], float]) -> float | None:
    """Return the time of a run, or None where tiles do not compile or need more than the GPU has."""
    from triton.errors import TritonError

    try:
        return run()
    except (TritonError, RuntimeError) as error:  # passes of the compiler fail with a RuntimeError
        if isinstance(error, torch.AcceleratorError):
            raise  # after which nothing runs any more
        return None


def _seconds(call: Call, arch: str, tiles: Tiles, do: Any) -> float:  # pragma: no cover
    """Return the best of three."""
    best = float("inf")
    for _ in range(4):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        o, g, _ = call.new_outputs()
        both_passes.forward(Launch(call, Plan("factorized"), arch, tiles), o, g, None)
        work = Launch(call, Plan("factorized"), arch, tiles)
        both_passes.backward(work, o, g, OutputGrads(do, None, None), InputGrads.empty(call))
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end) / 1000)  # the first has compiled
    return best
