"""`fastmax-lab bench core`: growth of time and memory with N, and the ratio to the paper's literal form."""

from collections.abc import Callable
from typing import Any

import torch

from fastmax import core, fastmax_attention
from fastmax_lab._progress import Progress
from fastmax_lab.bench.measure import interleave, seconds
from fastmax_lab.bench.memory import peak
from fastmax_lab.measurements import Recorder, slug
from fastmax_lab.report.table import mask

BACKENDS = ("native", "chunked")
"""The backends of the CPU."""
MEMORY_TOKENS = [1 << n for n in range(14, 19)]
TIME_TOKENS = [1 << n for n in range(13, 17)]
LITERAL = {"tokens": 4096, "head_dim": 32, "heads": 1}


def run(record: Recorder, quick: bool) -> None:
    """Record peak memory, times, and times of the literal form; the setting `measured` selects."""
    memory_tokens = MEMORY_TOKENS[:3] if quick else MEMORY_TOKENS
    time_tokens = TIME_TOKENS[:3] if quick else TIME_TOKENS
    with Progress(len(BACKENDS) * (len(memory_tokens) + 2) + 2) as bar:
        for backend in BACKENDS:
            for tokens in memory_tokens:
                bar.step(f"memory, {backend}, N = {tokens:,}")
                call: dict[str, Any] = {
                    "tokens": tokens,
                    "head_dim": 64,
                    "order": 2,
                    "is_causal": True,
                    "backend": backend,
                }
                record.add(slug("memory", backend, tokens), {"measured": "memory"} | call, peak(**call))
        for is_causal in (False, True):
            for backend in BACKENDS:
                bar.step(f"time, {backend}, {mask(is_causal)}")
                _time(record, backend, time_tokens, is_causal, rounds=2 if quick else 6)
            bar.step(f"the literal form, {mask(is_causal)}")
            _literal(record, is_causal, rounds=5)


def _time(record: Recorder, backend: str, lengths: list[int], is_causal: bool, rounds: int) -> None:
    """Time all lengths in turns, so that a slow minute of the machine affects more than one length."""
    contestants: dict[tuple[int, str], Callable[[], object]] = {}
    for tokens in lengths:
        contestants |= {(tokens, name): call for name, call in _passes(backend, tokens, is_causal).items()}
    timings = interleave(contestants, rounds=rounds)
    for tokens in lengths:
        call = {"measured": "time", "backend": backend, "tokens": tokens, "is_causal": is_causal}
        own = {name: timing for (at, name), timing in timings.items() if at == tokens}
        record.add(slug("time", backend, mask(is_causal), tokens), call, {"seconds": seconds(own)})


def _passes(backend: str, tokens: int, is_causal: bool) -> dict[str, Callable[[], object]]:
    q, k, v = (torch.randn(1, 1, tokens, 64).requires_grad_() for _ in range(3))
    do = torch.randn(1, 1, tokens, 64)

    @torch.no_grad()
    def forward() -> None:
        fastmax_attention(q, k, v, is_causal=is_causal, backend=backend)

    def forward_and_backward() -> None:
        o = fastmax_attention(q, k, v, is_causal=is_causal, backend=backend)
        torch.autograd.grad(o, (q, k, v), do)

    return {"forward": forward, "forward + backward": forward_and_backward}


def _literal(record: Recorder, is_causal: bool, rounds: int) -> None:
    q, k, v = (torch.randn(LITERAL["heads"], LITERAL["tokens"], LITERAL["head_dim"]) for _ in range(3))
    contestants: dict[str, Any] = {"core.py": lambda: core.fastmax(q, k, v, is_causal=is_causal)}
    for backend in BACKENDS:
        contestants[backend] = lambda name=backend: fastmax_attention(q, k, v, is_causal=is_causal, backend=name)
    call = {"measured": "literal", **LITERAL, "order": 2, "is_causal": is_causal}
    record.add(slug("literal", mask(is_causal)), call, {"seconds": seconds(interleave(contestants, rounds=rounds))})
