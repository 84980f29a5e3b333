"""`fastmax bench decode`: seconds per token with a state of constant size, against softmax attention over a cache."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from fastmax._progress import Progress
from fastmax.bench.measure import interleave, seconds, write
from fastmax.state import FastmaxState

BATCH, HEADS, HEAD_DIM = 1, 8, 64
CONTEXTS = [1 << 10, 1 << 12, 1 << 14, 1 << 18, 1 << 20]
PREFILL = 1 << 12
"""The state of a longer context is made by adding that of so many tokens to itself."""


def run(out: str | None, quick: bool) -> dict[str, Any]:
    """One step at every context, all of them in turns."""
    contexts = CONTEXTS[:3] if quick else CONTEXTS
    measured: dict[str, Any] = {"batch": BATCH, "heads": HEADS, "head_dim": HEAD_DIM, "order": 2, "cells": []}
    with Progress(len(contexts) + 1) as bar, torch.inference_mode():
        contestants: dict[tuple[int, str], Callable[[], object]] = {}
        for context in contexts:
            bar.step(f"preparing {context:,} tokens")
            contestants |= {(context, name): call for name, call in _contestants(context).items()}
        bar.step("all contexts in turns")
        timings = interleave(contestants, rounds=5 if quick else 15, least_seconds=0.05)
    for context in contexts:
        own = {name: t for (at, name), t in timings.items() if at == context}
        measured["cells"].append({"context": context, "seconds": seconds(own)})
    write(out, measured)
    return measured


def _contestants(context: int) -> dict[str, Callable[[], object]]:
    state = FastmaxState.empty(BATCH, HEADS, HEAD_DIM)
    k, v = (torch.randn(BATCH, HEADS, min(context, PREFILL), HEAD_DIM) for _ in range(2))
    state.update(k, v)
    for _ in range((context // PREFILL).bit_length() - 1):
        state = state + state
    q, new_k, new_v = (torch.randn(BATCH, HEADS, 1, HEAD_DIM) for _ in range(3))
    keys, values = (torch.randn(BATCH, HEADS, context, HEAD_DIM) for _ in range(2))
    source, target = torch.randn_like(state.tensor), torch.empty_like(state.tensor)

    def softmax() -> None:
        # the last slot of a cache that was allocated beforehand
        keys[:, :, -1:], values[:, :, -1:] = new_k, new_v
        scaled_dot_product_attention(q, keys, values)

    return {"fastmax": lambda: state.step(q, new_k, new_v), "softmax": softmax, "copy": lambda: target.copy_(source)}
