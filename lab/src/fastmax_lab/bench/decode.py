"""`fastmax-lab bench decode`: seconds per token with a state of constant size, against softmax attention over a cache."""

from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

from fastmax.state import FastmaxState
from fastmax_lab._progress import Progress
from fastmax_lab.bench.measure import interleave, seconds
from fastmax_lab.measurements import Recorder, slug

HEADS, HEAD_DIM = 8, 64
CELLS = [(1, 1 << n) for n in (8, 9, 10, 11, 12, 14, 18, 20)] + [
    (8, 1 << 10),
    (8, 1 << 12),
    (64, 1 << 10),
    (64, 1 << 11),
]
"""Sequences and context: one sequence from short to long, several where a cache of as many still fits the memory."""
QUICK = [(1, 1 << 10), (1, 1 << 12), (1, 1 << 14), (8, 1 << 10)]
PREFILL = 1 << 12
"""The state of a longer context is made by adding that of this many tokens to itself."""


def run(record: Recorder, quick: bool) -> None:
    """Time one step at every context, all of one batch in turns."""
    cells = QUICK if quick else CELLS
    batches = sorted({batch for batch, _ in cells})
    with Progress(len(cells) + len(batches)) as bar, torch.inference_mode():
        for batch in batches:
            contestants: dict[tuple[int, str], Callable[[], object]] = {}
            contexts = [context for size, context in cells if size == batch]
            for context in contexts:
                bar.step(f"preparing {batch} x {context:,} tokens")
                contestants |= {(context, name): call for name, call in _contestants(batch, context).items()}
            bar.step(f"all contexts of {batch} in turns")
            timings = interleave(contestants, rounds=5 if quick else 15, least_seconds=0.05)
            for context in contexts:
                own = {name: t for (at, name), t in timings.items() if at == context}
                settings = {"batch": batch, "context": context, "heads": HEADS, "head_dim": HEAD_DIM, "order": 2}
                record.add(slug(batch, "sequences", context), settings, {"seconds": seconds(own)})


def _contestants(batch: int, context: int) -> dict[str, Callable[[], object]]:
    state = FastmaxState.empty(batch, HEADS, HEAD_DIM, order=2, scale=1.0, normalize=True)
    k, v = (torch.randn(batch, HEADS, min(context, PREFILL), HEAD_DIM) for _ in range(2))
    state.update(k, v)
    for _ in range((context // PREFILL).bit_length() - 1):
        state = state + state
    q, new_k, new_v = (torch.randn(batch, HEADS, 1, HEAD_DIM) for _ in range(3))
    keys, values = (torch.randn(batch, HEADS, context, HEAD_DIM) for _ in range(2))
    source, target = torch.randn_like(state.tensor), torch.empty_like(state.tensor)

    def softmax() -> None:
        # the last slot of a cache that was allocated beforehand
        keys[:, :, -1:], values[:, :, -1:] = new_k, new_v
        scaled_dot_product_attention(q, keys, values)

    return {"fastmax": lambda: state.step(q, new_k, new_v), "softmax": softmax, "copy": lambda: target.copy_(source)}
