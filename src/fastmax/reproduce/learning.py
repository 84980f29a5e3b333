"""What learns: language and recall, Fastmax with and without a forget gate beside softmax, as lists of runs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fastmax.data import shakespeare
from fastmax.reproduce import queue
from fastmax.reproduce.language import LanguageRun, language
from fastmax.reproduce.recall import RecallRun, recall

RATES = (2e-3, 4e-3, 8e-3)
COMPARED = ("softmax", "fastmax2, gated", "softmax, gated")
SEEDS = (0, 1, 2)


def best_rates(results: list[dict[str, Any]]) -> dict[str, float]:
    """The learning rate of the lowest validation loss of seed 0, for each attention that has all of them."""
    found: dict[str, dict[float, float]] = {}
    for result in results:
        run = result["run"]
        if run["seed"] == 0:
            found.setdefault(run["attention"], {})[run["lr"]] = result["val_loss"]
    return {name: min(losses, key=losses.__getitem__) for name, losses in found.items() if set(losses) >= set(RATES)}


def language_runs(path: Path, tokens: int, steps: int, attentions: Sequence[str]) -> list[LanguageRun]:
    """Every rate with the first seed; then, with the best rate of each attention, the others."""
    batch = 8 if tokens <= 128 else 4
    first = [LanguageRun(name, tokens, lr, 0, steps, batch) for name in attentions for lr in RATES]
    if queue.pending(path, first):
        return first
    rates = best_rates(queue.results(path))
    return first + [
        LanguageRun(name, tokens, rates[name], seed, steps, batch) for name in attentions for seed in SEEDS[1:]
    ]


def recall_runs() -> list[RecallRun]:
    """64 pairs; and one pair with 512 tokens of filler before its question."""
    near = [RecallRun(name) for name in ("softmax", "fastmax2", "linear", "fastmax1")]
    gates = [RecallRun("fastmax2, gated", memory=memory) for memory in ((2.0, 7.0), (2.0, 12.0), (9.0, 9.0))]
    far = RecallRun("fastmax2", pairs=1, filler=512)
    gated = [
        replace(far, attention="fastmax2, gated", memory=memory) for memory in ((2.0, 7.0), (2.0, 12.0), (9.0, 9.0))
    ]
    again = [replace(run, seed=1) for run in (near[1], gates[-1])]
    return [near[0], near[1], gates[-1], far, gated[-1], *near[2:], *gates[:-1], *gated[:-1], *again]


def run_language(data: Path, out: Path, lengths: Sequence[int], steps: int, say: Callable[[str], None] = print) -> None:
    """Tiny Shakespeare by characters, a file of results for each length."""
    train_text, alphabet = shakespeare.load("train", data)
    val_text, _ = shakespeare.load("val", data)
    texts = torch.from_numpy(train_text), torch.from_numpy(val_text)
    for tokens in lengths:
        path = out / f"language-{tokens}.jsonl"
        attentions = (*COMPARED, "fastmax2") if tokens <= 128 else COMPARED
        for _ in range(2):  # what is run second depends on the first
            runs = language_runs(path, tokens, steps, attentions)
            queue.work(path, runs, lambda run: language(run, *texts, len(alphabet)), say)


def run_recall(out: Path, say: Callable[[str], None] = print) -> None:
    queue.work(out / "recall.jsonl", recall_runs(), recall, say)
