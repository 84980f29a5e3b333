"""Language: bytes of a text, rotary positions, equal steps: how far Fastmax is from softmax, and what a forget gate does."""

from collections.abc import Callable
from dataclasses import dataclass
from math import log
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fastmax.models import FastmaxLM, LMConfig
from fastmax_lab.experiments.texts import Text
from fastmax_lab.experiments.training import Watch, Wrap, make_model, reaches, train

Make = Callable[[str, int, LMConfig], FastmaxLM]
"""A model of a name, from a seed, of a size."""
VALIDATION = 49_152
"""Characters of the validation text whose loss is taken: windows, evenly spread and the same for all."""


@dataclass(frozen=True)
class LanguageRun:
    attention: str
    tokens: int = 128
    lr: float = 2e-3
    seed: int = 0
    steps: int = 600
    batch: int = 8
    layers: int = 2
    width: int = 128
    heads: int = 4
    memory: tuple[float, float] = (2.0, 7.0)
    text: str = "shakespeare"
    validation: int = VALIDATION


def fit(
    run: LanguageRun, text: Text, watch: Watch, wrap: Wrap = lambda layer: layer, make: Make | None = None
) -> tuple[FastmaxLM, dict[str, Any]]:
    """Return a trained model, made by `make` or of an attention of the experiment, and how the training went."""
    config = LMConfig(
        len(text.alphabet), layers=run.layers, width=run.width, heads=run.heads, mlp_ratio=2, memory=run.memory
    )  # fmt: skip
    named = run.attention, run.seed, config
    model = make_model(*named, wrap) if make is None else make(*named)
    generator = torch.Generator().manual_seed(run.seed)

    def loss() -> Tensor:
        starts = torch.randint(len(text.train) - run.tokens - 1, (run.batch,), generator=generator)
        batch = windows(text.train, starts, run.tokens)
        return loss_of(model(batch[:, :-1]), batch)

    trained = train(
        model, model.parameter_groups(0.1), loss, lr=run.lr, steps=run.steps, warmup=max(1, run.steps // 10), watch=watch
    )  # fmt: skip
    return model.eval(), trained


@torch.no_grad()
def held_out(run: LanguageRun, model: FastmaxLM, text: Text) -> dict[str, float]:
    """Return the loss on the validation text, in nats and in bits per character."""
    held = windows(text.val, spread(text.val, run), run.tokens)
    value = sum(loss_of(model(part[:, :-1]), part).item() * len(part) for part in torch.split(held, 32)) / len(held)
    return {"val_loss": value, "bits_per_character": value / log(2)}


def language(run: LanguageRun, text: Text, watch: Watch, make: Make | None = None) -> dict[str, Any]:
    """Return the validation loss and the reach of the gates."""
    model, trained = fit(run, text, watch, make=make)
    seen = windows(text.val, spread(text.val, run)[:4], run.tokens)[:, :-1]
    return trained | held_out(run, model, text) | {"reach": reaches(model, seen)}


def spread(text: Tensor, run: LanguageRun) -> Tensor:
    """Return starts of windows, evenly over the text."""
    return torch.linspace(0, len(text) - run.tokens - 2, run.validation // run.tokens).long()


def windows(text: Tensor, starts: Tensor, tokens: int) -> Tensor:
    """Return windows, (B, tokens + 1)."""
    return text[starts[:, None] + torch.arange(tokens + 1)].long()


def loss_of(logits: Tensor, windows: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
