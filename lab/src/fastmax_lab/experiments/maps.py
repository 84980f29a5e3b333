"""Attention maps (Figure 4): what trained Transformers look at, on images and on text, and how local it is, as numbers."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fastmax_lab.experiments import images, texts
from fastmax_lab.experiments.images import Images
from fastmax_lab.experiments.items import Item, Workspace
from fastmax_lab.experiments.language_model import LanguageRun, fit, held_out, spread, windows
from fastmax_lab.experiments.recorded import LayerMaps, recording, vision_maps
from fastmax_lab.experiments.texts import Text
from fastmax_lab.experiments.training import train
from fastmax_lab.experiments.vision import VisionConfig, VisionModel, score
from fastmax_lab.measurements import Measurement, slug

NAME = "maps"
ATTENTIONS = ("softmax", "fastmax2, paper's scale", "fastmax2", "fastmax2, gated")
"""Figure 4 has the paper's scale, 1; without a word it is 1 / sqrt(D)."""
TUNED = ATTENTIONS[:2]
"""Those that claims of the paper are judged by: they have their best learning rate, the others that of the budget."""
FACTORS = (1.0, 0.5, 2.0, 4.0)
"""On the learning rate of the budget: the rates that are tried with the first seed."""
SHOWN = 3
"""Samples whose maps are kept; locality is the mean over `LOCALITY` of them."""
LOCALITY = 64
TEXT_TOKENS = 48
"""Tokens of the windows whose maps are drawn: as many as a reader can tell apart."""


@dataclass(frozen=True)
class ImageRun:
    attention: str
    data: str
    seed: int
    steps: int
    batch: int
    lr: float
    model: VisionConfig = field(default_factory=VisionConfig)


Run = ImageRun | LanguageRun


def held_out_loss(values: Mapping[str, Any]) -> float:
    """Return the loss that chooses learning rates, on images or text that were not trained on."""
    return float(values["test_loss"] if "test_loss" in values else values["val_loss"])


def runs(budget: str, found: Sequence[Measurement] = ()) -> list[Run]:
    """Return the runs of every seed; where rates are tuned, every rate with the first seed, then more seeds at the best."""
    base = _at_one_rate(budget)
    if budget == "quick":
        return base
    measured = {_key(one.settings): held_out_loss(one.values) for one in found}
    result: list[Run] = []
    for run in base:
        if run.attention not in TUNED:
            result.append(run)
            continue
        rates = [run.lr * factor for factor in FACTORS]
        if run.seed == 0:
            result += [replace(run, lr=lr) for lr in rates]
            continue
        losses = {lr: measured.get(_key(asdict(replace(run, seed=0, lr=lr)))) for lr in rates}
        known = {lr: loss for lr, loss in losses.items() if loss is not None}
        if len(known) == len(rates):
            result.append(replace(run, lr=min(known, key=known.__getitem__)))
    return result


def _key(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    return settings.get("data", settings.get("text")), settings["attention"], settings["seed"], settings["lr"]


def _at_one_rate(budget: str) -> list[Run]:
    small = VisionConfig(layers=2, dim=32, heads=2, mlp=64)
    image: dict[str, Any] = {
        "quick": {"data": "shapes", "steps": 100, "batch": 32, "lr": 3e-3, "model": small},
        "cpu": {"data": "mnist", "steps": 900, "batch": 64, "lr": 1e-3},
        "full": {"data": "mnist", "steps": 4690, "batch": 128, "lr": 5e-4, "model": VisionConfig(layers=6)},
    }[budget]
    text: dict[str, Any] = {
        "quick": {
            "text": "listops",
            "validation": 4096,
            "steps": 100,
            "batch": 8,
            "lr": 4e-3,
            "tokens": 64,
            "layers": 2,
            "width": 48,
            "heads": 2,
        },
        "cpu": {
            "text": "shakespeare",
            "steps": 600,
            "batch": 8,
            "lr": 4e-3,
            "tokens": 128,
            "layers": 2,
            "width": 128,
            "heads": 4,
        },
        "full": {
            "text": "shakespeare",
            "steps": 5000,
            "batch": 64,
            "lr": 1e-3,
            "tokens": 256,
            "layers": 8,
            "width": 256,
            "heads": 8,
        },
    }[budget]
    seeds = (0,) if budget == "quick" else (0, 1, 2)
    result: list[Run] = []
    for seed in seeds:
        result += [ImageRun(name, seed=seed, **image) for name in ATTENTIONS]
        result += [LanguageRun(name, seed=seed, **text) for name in ATTENTIONS]
    return result


def items(budget: str, found: Sequence[Measurement]) -> list[Item]:
    cost = {"quick": 4.0, "cpu": 80.0, "full": 3000.0}[budget]
    usual = {data_of(run): run.lr for run in _at_one_rate(budget)}
    return [item(run, cost, usual[data_of(run)]) for run in runs(budget, found)]


def item(run: Run, cost: float, usual_rate: float) -> Item:
    rate = "" if run.lr == usual_rate else f"lr{run.lr:g}"
    name = slug(data_of(run), run.attention, rate, f"seed{run.seed}").replace("'s", "")
    return Item(NAME, name, asdict(run), partial(measure, run), cost, threads=1)


def measure(run: Run, workspace: Workspace) -> dict[str, Any]:
    """Measure the losses, the locality of every layer and head, and, of the first seed, the maps of a few samples."""
    if isinstance(run, ImageRun):
        return _measure_images(run, images.load(run.data, workspace.data), workspace)
    return _measure_text(run, texts.load(run.text, workspace.data), workspace)


def _measure_images(run: ImageRun, data: Images, workspace: Workspace) -> dict[str, Any]:
    torch.manual_seed(run.seed)
    model = VisionModel(run.attention, run.model)
    generator = torch.Generator().manual_seed(run.seed)

    def loss() -> Tensor:
        rows = torch.randint(len(data.train), (run.batch,), generator=generator)
        return cross_entropy(model(data.train[rows]), data.train_labels[rows])

    trained = train(
        model,
        [{"params": list(model.parameters()), "weight_decay": 0.01}],
        loss,
        lr=run.lr,
        steps=run.steps,
        warmup=max(1, run.steps // 10),
        watch=workspace.watch(run.steps),
    )
    test_loss, accuracy = score(model, data.test, data.test_labels)
    maps = vision_maps(model, data.test[:LOCALITY])
    rows = _first_of_each(data.test_labels)
    samples = [{"pixels": _packed(data.test[i].numpy()), "label": int(data.test_labels[i])} for i in rows]
    return trained | {
        "test_loss": test_loss,
        "accuracy": accuracy,
        "test_examples": len(data.test),
        **_looked_at(maps, rows, samples, is_causal=False, seed=run.seed),
    }


def _measure_text(run: LanguageRun, text: Text, workspace: Workspace) -> dict[str, Any]:
    model, trained = fit(run, text, workspace.watch(run.steps), recording)
    starts = spread(text.val, replace(run, tokens=max(run.tokens, TEXT_TOKENS)))
    looked = windows(text.val, starts[:LOCALITY], TEXT_TOKENS)[:, :-1]
    with torch.no_grad(), LayerMaps(model) as maps:
        model(looked)
    samples = [{"tokens": [text.alphabet[t] for t in looked[i].tolist()]} for i in range(SHOWN)]
    looks = _looked_at(maps.found, list(range(SHOWN)), samples, is_causal=True, seed=run.seed)
    return trained | held_out(run, model, text) | looks


def data_of(run: Run) -> str:
    return run.data if isinstance(run, ImageRun) else run.text


def _first_of_each(labels: Tensor) -> list[int]:
    """Return the first samples of different classes, among those whose maps are taken."""
    firsts: dict[int, int] = {}
    for i, label in enumerate(labels[:LOCALITY].tolist()):
        firsts.setdefault(label, i)
    return list(firsts.values())[:SHOWN]


def _looked_at(
    maps: list[Tensor], rows: list[int], samples: list[dict[str, Any]], *, is_causal: bool, seed: int
) -> dict[str, Any]:
    found: dict[str, Any] = {"locality": [locality(layer, is_causal=is_causal) for layer in maps]}
    if seed == 0:
        found |= {
            "tokens": maps[0].shape[-1],
            "samples": samples,
            "maps": [[[_packed(_levels(head)) for head in layer[row]] for row in rows] for layer in maps],
        }
    return found


def _levels(weights: Tensor) -> np.ndarray:
    """Round weights from 0 to 1 to steps of 1 / 65535."""
    return (weights.clamp(0, 1) * 65535).round().numpy().astype("<u2")


def _packed(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def locality(maps: Tensor, *, is_causal: bool) -> list[dict[str, float]]:
    """Measure maps (B, H, N, N) by head: means over samples and queries that see at least two keys.

    keys      the effective number of keys, exp of the entropy of a row, over the number it sees: 1 if all weigh the same
    distance  the mean distance in tokens, weighted, over that of equal weights: 1 if place does not matter
    largest   the largest weight of a row
    """
    weights = maps.double().clamp(min=0)
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-300)
    tokens = maps.shape[-1]
    place = torch.arange(tokens, device=maps.device)
    apart = (place[:, None] - place).abs().double()
    seen = (place[:, None] >= place).double() if is_causal else torch.ones_like(apart)
    many = seen.sum(-1) >= 2
    entropy = -torch.xlogy(weights, weights).sum(-1)
    keys = entropy.exp() / seen.sum(-1)
    distance = (weights * apart).sum(-1) / ((seen * apart).sum(-1) / seen.sum(-1)).clamp(min=1e-300)
    values = {"keys": keys, "distance": distance, "largest": weights.amax(-1)}
    means = {name: value[..., many].mean((0, 2)).tolist() for name, value in values.items()}
    return [{name: means[name][head] for name in means} for head in range(maps.shape[1])]
