"""Dropout (Figure 2): none and the three ways, at several rates, with too few examples: test loss over training."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fastmax.dropout import MODES
from fastmax_lab.experiments import images
from fastmax_lab.experiments.items import Item, Workspace
from fastmax_lab.experiments.training import train
from fastmax_lab.experiments.vision import VisionConfig, VisionModel, score
from fastmax_lab.measurements import Measurement, slug

NAME = "dropout"
SEEDS = (0, 1, 2)
COMPARED = ("fastmax2, paper's scale", "fastmax2, as released")
"""With more seeds: the paper's claim speaks of these."""
MORE_SEEDS = tuple(range(10))
COMPARED_WAYS = (("none", 0.0), ("quadratic", 0.05), ("quadratic", 0.1), ("1d", 0.05), ("1d", 0.1))


@dataclass(frozen=True)
class DropoutRun:
    mode: str
    rate: float
    seed: int
    data: str = "mnist"
    examples: int = 500
    steps: int = 1000
    batch: int = 50
    lr: float = 1e-3
    every: int = 100
    tested: int = 1000
    layers: int = 2
    dim: int = 64
    heads: int = 2
    attention: str = "fastmax2"


def runs(budget: str) -> list[DropoutRun]:
    sizes: dict[str, dict[str, Any]] = {
        "quick": {
            "data": "shapes",
            "examples": 120,
            "steps": 100,
            "batch": 24,
            "lr": 3e-3,
            "every": 20,
            "tested": 400,
            "layers": 1,
            "dim": 24,
        },
        "cpu": {},
        "full": {"examples": 2000, "steps": 8000, "every": 400, "tested": 10_000, "layers": 6, "dim": 96, "heads": 4},
    }
    rates = {"quick": (0.1,), "cpu": (0.05, 0.1, 0.3), "full": (0.05, 0.1, 0.2, 0.3)}[budget]
    ways = [("none", 0.0), *((mode, rate) for rate in rates for mode in MODES)]
    result = [DropoutRun(mode, rate, seed, **sizes[budget]) for seed in SEEDS for mode, rate in ways]
    if budget != "quick":
        result += [
            DropoutRun(mode, rate, seed, attention=attention, **sizes[budget])
            for attention in COMPARED
            for seed in MORE_SEEDS
            for mode, rate in COMPARED_WAYS
        ]
    return result


def items(budget: str, found: Sequence[Measurement]) -> list[Item]:  # noqa: ARG001
    cost = {"quick": 2.0, "cpu": 50.0, "full": 5000.0}[budget]
    return [item(run, cost) for run in runs(budget)]


def item(run: DropoutRun, cost: float) -> Item:
    kind = run.attention.removeprefix("fastmax2").replace("'s", "")
    name = slug(kind, run.mode, run.rate, f"seed{run.seed}")
    return Item(NAME, name, asdict(run), partial(measure, run), cost, threads=1)


def measure(run: DropoutRun, workspace: Workspace) -> dict[str, Any]:
    """Return [step, test loss, test accuracy, smoothed training loss] at regular steps."""
    data = images.load(run.data, workspace.data)
    torch.manual_seed(run.seed)
    model = VisionModel(
        run.attention,
        VisionConfig(
            run.layers,
            run.dim,
            run.heads,
            2 * run.dim,
            attention_dropout=run.rate,
            dropout_mode=run.mode if run.rate else "quadratic",
        ),
    )
    order = torch.Generator().manual_seed(run.seed)
    curve: list[list[float]] = []

    def loss() -> Tensor:
        rows = torch.randint(run.examples, (run.batch,), generator=order)
        return cross_entropy(model(data.train[rows]), data.train_labels[rows])

    def watch(step: int, smooth: float) -> bool:
        if step % run.every == 0:
            curve.append([step, *score(model, data.test[: run.tested], data.test_labels[: run.tested]), smooth])
        return workspace.watch(run.steps)(step, smooth)

    trained = train(
        model,
        [{"params": list(model.parameters()), "weight_decay": 0.0}],
        loss,
        lr=run.lr,
        steps=run.steps,
        warmup=max(1, run.steps // 10),
        watch=watch,
    )
    return trained | {"curve": curve, "test_loss": curve[-1][1], "accuracy": curve[-1][2]}
