"""Language: bytes of a text, rotary positions, equal steps: how far Fastmax is from softmax, and what a forget gate does."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fastmax.models import LMConfig
from fastmax.reproduce.training import make_model, reaches, train

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


def language(run: LanguageRun, train_text: Tensor, val_text: Tensor, vocabulary: int) -> dict[str, Any]:
    """Validation loss in nats per character, its bits, and the reach of the gates."""
    config = LMConfig(
        vocabulary, layers=run.layers, width=run.width, heads=run.heads, mlp_ratio=2, memory=run.memory
    )  # fmt: skip
    model = make_model(run.attention, run.seed, config)
    generator = torch.Generator().manual_seed(run.seed)

    def loss_of() -> Tensor:
        starts = torch.randint(len(train_text) - run.tokens - 1, (run.batch,), generator=generator)
        return _loss(model(_windows(train_text, starts, run.tokens)[:, :-1]), _windows(train_text, starts, run.tokens))

    result = train(
        model, model.parameter_groups(0.1), loss_of, lr=run.lr, steps=run.steps, warmup=max(1, run.steps // 10)
    )  # fmt: skip
    starts = torch.linspace(0, len(val_text) - run.tokens - 2, VALIDATION // run.tokens).long()
    model.eval()
    with torch.no_grad():
        windows = _windows(val_text, starts, run.tokens)
        losses = [_loss(model(w[:, :-1]), w).item() for w in windows.reshape(-1, 32, windows.shape[1])]
    loss = sum(losses) / len(losses)
    more = {"val_loss": loss, "bits_per_character": loss / 0.6931471805599453}
    reach = reaches(model, _windows(val_text, starts[:4], run.tokens)[:, :-1])
    return {"run": asdict(run), **result, **more, "reach": reach}


def _windows(text: Tensor, starts: Tensor, tokens: int) -> Tensor:
    """(B, tokens + 1)."""
    return text[starts[:, None] + torch.arange(tokens + 1)].long()


def _loss(logits: Tensor, windows: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
