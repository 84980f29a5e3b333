"""`fastmax-lab bench values`: the time of one call by the values of its inputs, which should not matter."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from fastmax import fastmax_attention
from fastmax_lab._progress import Progress
from fastmax_lab.bench.measure import interleave, seconds
from fastmax_lab.measurements import Recorder, slug

CELLS = [(1024, 32), (8192, 32), (1024, 64), (8192, 64)]
"""Tokens and head dimension: the dense and the factorized form of each."""
HEADS = 4
NORMAL = "normal"
FASTMAX, SDPA = "fastmax", "SDPA"

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]  # q, k, v and the gradient of o

VALUES: dict[str, Callable[[Inputs], Inputs]] = {
    NORMAL: lambda x: x,
    "v 1e-38": lambda x: (x[0], x[1], x[2] * 1e-38, x[3]),
    "do 1e-36": lambda x: (x[0], x[1], x[2], x[3] * 1e-36),
    "q, k 1e-38": lambda x: (x[0] * 1e-38, x[1] * 1e-38, x[2], x[3]),
    "v 1e30": lambda x: (x[0], x[1], x[2] * 1e30, x[3]),
    "constant tokens": lambda x: (torch.ones_like(x[0]), torch.ones_like(x[1]), x[2], x[3]),
    "equal keys": lambda x: (x[0], x[1][:, :, :1].expand_as(x[1]).contiguous(), x[2], x[3]),
    "sparse v": lambda x: (x[0], x[1], x[2] * (torch.rand_like(x[2]) < 0.1), x[3]),
}


def run(record: Recorder, quick: bool) -> None:
    """Record causal order 2 in fp32, forward + backward, of Fastmax and of SDPA; of SDPA up to 1,024 tokens."""
    cells = CELLS[:1] if quick else CELLS
    with Progress(2 * len(cells)) as bar:
        for tokens, head_dim in cells:
            for attention in (FASTMAX, SDPA):
                bar.step(f"{attention}, N = {tokens:,}, D = {head_dim}")
                if attention == SDPA and tokens > 1024:
                    continue
                calls = {name: _call(attention, change(_normal(tokens, head_dim))) for name, change in VALUES.items()}
                timings = interleave(calls, rounds=3 if quick else 7, yardstick=NORMAL)
                cell = {"attention": attention, "tokens": tokens, "head_dim": head_dim, "heads": HEADS, "order": 2}
                record.add(slug(attention, tokens, f"d{head_dim}"), cell, {"seconds": seconds(timings)})


def _normal(tokens: int, head_dim: int) -> Inputs:
    q, k, v, do = (torch.randn(1, HEADS, tokens, head_dim) for _ in range(4))
    return q, k, v, do


def _call(attention: str, inputs: Inputs) -> Callable[[], object]:
    q, k, v = (x.requires_grad_() for x in inputs[:3])

    def call() -> None:
        o = (
            fastmax_attention(q, k, v, is_causal=True)
            if attention == FASTMAX
            else scaled_dot_product_attention(q, k, v, is_causal=True)
        )
        torch.autograd.grad(o, (q, k, v), inputs[3])

    return call
