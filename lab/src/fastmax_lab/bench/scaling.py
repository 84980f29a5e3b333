"""Time and memory of attention blocks against the number of tokens (Figure 3), one head dimension at a time."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from fastmax import fastmax_attention
from fastmax.backends import native
from fastmax.call import Call, Options
from fastmax.core import default_scale
from fastmax.plan import Plan
from fastmax_lab.bench.measure import interleave, seconds
from fastmax_lab.bench.memory import current_peak, free_at_once, reset_peak

ORDERS = ("fastmax1", "fastmax2")
CONTESTANTS = ("vanilla", "softmax", "fastmax1", "fastmax2")


PASSES = ("forward", "forward + backward")


@dataclass(frozen=True)
class Grid:
    """`longest` are the seconds that a call may be expected to take; `limit` the bytes that its N x N matrices may."""

    head_dim: int
    tokens: tuple[int, ...]
    heads: int = 4
    rounds: int = 3
    longest: float = 2.0
    limit: int = 4 << 30


def matrix_bytes(grid: Grid, contestant: str, tokens: int, backward: bool) -> int:
    """Return the bytes of the N x N matrices of the plain formula: scores and weights; with gradients, three."""
    return (3 if backward else 2) * 4 * grid.heads * tokens**2 if contestant == "vanilla" else 0


def times(grid: Grid, show: Callable[[float, str], None]) -> list[dict[str, Any]]:
    """Return a cell for each length, mask and pass: the seconds of those that ran, and why the rest did not."""
    cells = []
    combinations = [(causal, kind) for causal in (False, True) for kind in PASSES]
    for number, (is_causal, kind) in enumerate(combinations):
        before: dict[str, tuple[int, float]] = {}
        for tokens in grid.tokens:
            show(number / len(combinations), f"N = {tokens:,}")
            first = tokens in grid.tokens[:2]  # two points make a slope, however slow the machine is today
            absent = {}
            calls: dict[str, Callable[[], object]] = {}
            for name in CONTESTANTS:
                if matrix_bytes(grid, name, tokens, kind != PASSES[0]) > grid.limit:
                    absent[name] = "memory"
                elif not first and name in before and _expected(name, *before[name], tokens) > grid.longest:
                    absent[name] = "time"
                else:
                    calls[name] = call(grid, name, tokens, is_causal, kind != PASSES[0])
            timings = interleave(calls, rounds=grid.rounds, slow=(grid.longest / 4, 1))
            before |= {name: (tokens, timing.best) for name, timing in timings.items()}
            cells.append(
                {
                    "tokens": tokens,
                    "is_causal": is_causal,
                    "pass": kind,
                    "seconds": seconds(timings),
                    "absent": absent,
                }
            )
    return cells


def _expected(name: str, tokens: int, took: float, at: int) -> float:
    return took * (at / tokens) ** (1 if name.startswith("fastmax") else 2)


def call(grid: Grid, name: str, tokens: int, is_causal: bool, backward: bool) -> Callable[[], object]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, grid.heads, tokens, grid.head_dim).requires_grad_(backward) for _ in range(3))
    do = torch.ones(1, grid.heads, tokens, grid.head_dim) if backward else None

    def run() -> None:
        o = attend(name, q, k, v, is_causal)
        if do is not None:
            torch.autograd.grad(o, (q, k, v), do)

    return run


def forms(grid: Grid) -> list[dict[str, Any]]:
    """Return a cell for each length: seconds of a forward pass without a mask, of Fastmax in its factorized form."""
    cells = []
    for tokens in grid.tokens:
        calls = {
            name: _factorized(grid, int(name.removeprefix("fastmax")), tokens)
            if name.startswith("fastmax")
            else call(grid, name, tokens, False, False)
            for name in CONTESTANTS
        }
        cells.append({"tokens": tokens, "seconds": seconds(interleave(calls, rounds=grid.rounds))})
    return cells


def _factorized(grid: Grid, order: int, tokens: int) -> Callable[[], object]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, grid.heads, tokens, grid.head_dim) for _ in range(3))
    options = Options(order, False, scale=default_scale(order, grid.head_dim), out_dtype=q.dtype)
    chosen = Call(q, k, v, options=options)
    return lambda: native.forward(chosen, Plan("factorized"))


def heads(shapes: Sequence[tuple[int, int]], tokens: int, rounds: int) -> list[dict[str, Any]]:
    """Return a cell for each number of heads and of channels: seconds of a forward pass without a mask."""
    calls = {
        (count, head_dim, name): call(Grid(head_dim, (tokens,), heads=count), name, tokens, False, False)
        for count, head_dim in shapes
        for name in ORDERS
    }
    timings = interleave(calls, rounds=rounds)
    return [
        {"heads": count, "head_dim": head_dim, "seconds": seconds({n: timings[count, head_dim, n] for n in ORDERS})}
        for count, head_dim in shapes
    ]


def attend(name: str, q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    if name == "softmax":
        return scaled_dot_product_attention(q, k, v, is_causal=is_causal)
    if name == "vanilla":
        scores = (q / sqrt(q.shape[-1])) @ k.mT
        if is_causal:
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(hidden, -torch.inf)
        return scores.softmax(-1) @ v
    return fastmax_attention(q, k, v, is_causal=is_causal, order=int(name.removeprefix("fastmax")))


def memory(grid: Grid) -> list[dict[str, Any]]:
    """Return peak bytes above those before the inputs, of forward + backward in a separate process."""
    command = [sys.executable, "-m", "fastmax_lab.bench.scaling", json.dumps(asdict(grid))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"measuring memory of {grid} failed:\n{done.stderr}")
    result: list[dict[str, Any]] = json.loads(done.stdout)
    return result


def _memory(grid: Grid) -> list[dict[str, Any]]:
    free_at_once()
    cells = []
    for is_causal in (False, True):
        for name in CONTESTANTS:
            call(grid, name, 256, is_causal, True)()  # libraries load and pools grow at the first call
            for tokens in grid.tokens:
                if matrix_bytes(grid, name, tokens, True) > grid.limit or _slow(grid, name, tokens):
                    continue
                before = reset_peak()
                call(grid, name, tokens, is_causal, True)()
                peak = {"before": before, "peak": current_peak()}
                cells.append({"tokens": tokens, "is_causal": is_causal, "contestant": name, **peak})
    return cells


def _slow(grid: Grid, name: str, tokens: int) -> bool:
    """Return True if softmax of this many tokens takes too long to measure its memory, assuming 10 GFLOP/s."""
    flops = 14.0 * tokens**2 * grid.head_dim * grid.heads
    return not name.startswith("fastmax") and flops / 1e10 > 4 * grid.longest


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps(_memory(Grid(**given | {"tokens": tuple(given["tokens"])}))))
