"""Recall: pairs of a key and a value, then the keys once more, in another order: what was the value? (MQAR, Arora et al. 2023.)"""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fastmax.models import LMConfig
from fastmax.reproduce.training import make_model, reaches, train

NAMES = 128
"""Of keys, and as many of values; 0 is filler."""
SOLVED = 0.995


@dataclass(frozen=True)
class RecallRun:
    """`filler` tokens stand between the pairs and the questions: then the answer is that far away."""

    attention: str
    pairs: int = 64
    filler: int = 0
    lr: float = 3e-3
    seed: int = 0
    steps: int = 600
    batch: int = 16
    width: int = 64
    heads: int = 2
    memory: tuple[float, float] = (2.0, 12.0)


def examples(run: RecallRun, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens (count, N), and the right answers where a question stands, -100 elsewhere."""
    pairs = run.pairs
    keys = torch.rand(count, NAMES, generator=generator).argsort(1)[:, :pairs] + 1
    values = torch.randint(1, NAMES + 1, (count, pairs), generator=generator) + NAMES
    order = torch.rand(count, pairs, generator=generator).argsort(1)
    tokens = torch.zeros(count, 3 * pairs + run.filler, dtype=torch.long)
    tokens[:, 0 : 2 * pairs : 2], tokens[:, 1 : 2 * pairs : 2] = keys, values
    tokens[:, 2 * pairs + run.filler :] = keys.gather(1, order)
    answers = torch.full_like(tokens, -100)
    answers[:, 2 * pairs + run.filler :] = values.gather(1, order)
    return tokens, answers


def recall(run: RecallRun) -> dict[str, Any]:
    """Accuracy on examples that were not trained on; training stops once it is solved."""
    config = LMConfig(
        2 * NAMES + 1, layers=2, width=run.width, heads=run.heads, mlp_ratio=2, memory=run.memory, conv=2
    )  # fmt: skip
    model = make_model(run.attention, run.seed, config)
    generator = torch.Generator().manual_seed(run.seed)
    questions, answers = examples(run, 128, torch.Generator().manual_seed(12345))
    curve: list[tuple[int, float]] = []

    def loss_of() -> Tensor:
        tokens, labels = examples(run, run.batch, generator)
        return cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), ignore_index=-100)

    def accuracy() -> float:
        model.eval()
        with torch.no_grad():
            guesses = torch.cat([model(part).argmax(-1) for part in questions.split(32)])
        model.train()
        asked = answers != -100
        return (guesses[asked] == answers[asked]).float().mean().item()

    def watch(step: int, _loss: float) -> bool:
        if step % 100:
            return False
        curve.append((step, accuracy()))
        return curve[-1][1] >= SOLVED

    result = train(
        model, model.parameter_groups(0.1), loss_of, lr=run.lr, steps=run.steps, warmup=run.steps // 10, watch=watch
    )  # fmt: skip
    return {
        "run": asdict(run),
        **result,
        "accuracy": accuracy(),
        "solved": bool(curve and curve[-1][1] >= SOLVED),
        "curve": curve,
        "reach": reaches(model, questions[:4]),
    }
