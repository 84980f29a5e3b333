"""`python -m fastmax.reproduce.learning`: language and recall, Fastmax with and without a forget gate beside softmax."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from fastmax.data import shakespeare
from fastmax.data.files import default_folder
from fastmax.reproduce import queue
from fastmax.reproduce.language import LanguageRun, language
from fastmax.reproduce.recall import RecallRun, recall

RATES = (2e-3, 4e-3, 8e-3)
COMPARED = ("softmax", "softmax, gated", "fastmax2, gated")
SEEDS = (0, 1, 2)


def best_rates(results: list[dict[str, object]], tokens: int) -> dict[str, float]:
    """The learning rate of the lowest validation loss of seed 0, for each attention that has all of them."""
    found: dict[str, dict[float, float]] = {}
    for result in results:
        run, loss = result["run"], result["val_loss"]
        if isinstance(run, dict) and isinstance(loss, float) and run["seed"] == 0 and run["tokens"] == tokens:
            found.setdefault(run["attention"], {})[run["lr"]] = loss
    return {name: min(losses, key=lambda lr: losses[lr]) for name, losses in found.items() if set(losses) >= set(RATES)}


def language_runs(path: Path, tokens: int, steps: int, attentions: Sequence[str]) -> list[LanguageRun]:
    """Every rate with the first seed; then, with the best rate of each attention, the others."""
    batch = 8 if tokens <= 128 else 4
    first = [LanguageRun(name, tokens, lr, 0, steps, batch) for name in attentions for lr in RATES]
    if queue.pending(path, first):
        return first
    rates = best_rates(queue.results(path), tokens)
    others = [LanguageRun(name, tokens, rates[name], seed, steps, batch) for name in attentions for seed in SEEDS[1:]]
    return first + others


def recall_runs() -> list[RecallRun]:
    """64 pairs at once; and 16 pairs with 512 tokens of filler in between."""
    near = [RecallRun(name, seed=seed) for seed in SEEDS[:2] for name in ("softmax", "fastmax2", "linear", "fastmax1")]
    gates = [
        RecallRun("fastmax2, gated", memory=memory, seed=seed)
        for seed in SEEDS[:2]
        for memory in ((2.0, 12.0), (9.0, 9.0))
    ]
    far = RecallRun("fastmax2", pairs=16, filler=512, batch=8)
    return [
        *near, *gates, far, replace(far, attention="softmax"),
        *(replace(far, attention="fastmax2, gated", memory=memory) for memory in ((2.0, 7.0), (2.0, 12.0), (9.0, 9.0))),
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fastmax.reproduce.learning", description=__doc__)
    parser.add_argument("--only", choices=("language", "recall"), nargs="+", default=["language", "recall"])
    parser.add_argument("--data", type=Path, default=default_folder(), help="folder with tinyshakespeare.txt")
    parser.add_argument("--out", type=Path, default=Path("results/learning"))
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    given = [
        x if i == 0 or (arguments or sys.argv[1:])[i - 1] != "--data" else "DATA"
        for i, x in enumerate(arguments or sys.argv[1:])
    ]
    command = shlex.join(["python", "-m", "fastmax.reproduce.learning", *given])
    if "recall" in options.only:
        queue.work(options.out / "recall.jsonl", recall_runs(), recall, command)
    if "language" in options.only:
        train_text, alphabet = shakespeare.load("train", options.data)
        val_text, _ = shakespeare.load("val", options.data)
        texts = torch.from_numpy(train_text), torch.from_numpy(val_text)
        for tokens in options.tokens:
            path = options.out / f"language-{tokens}.jsonl"
            attentions = (*COMPARED, "fastmax2") if tokens <= 128 else COMPARED
            for _ in range(2):
                queue.work(
                    path,
                    language_runs(path, tokens, options.steps, attentions),
                    lambda run: language(run, *texts, len(alphabet)),
                    command,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
