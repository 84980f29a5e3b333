"""A small Transformer that classifies images by patches of 4 x 4 pixels, after the authors' published configuration."""

from dataclasses import dataclass, replace
from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fastmax_lab.baselines import BaselineOptions
from fastmax_lab.baselines.registry import attention
from fastmax_lab.lra.config import ModelPreset
from fastmax_lab.lra.model import EncoderBlock

PATCH = 4
TOKENS = (28 // PATCH) ** 2 + 1
"""The class token is the first."""
MODELS: dict[str, tuple[str, BaselineOptions]] = {
    "softmax": ("softmax", BaselineOptions()),
    "fastmax1": ("fastmax1", BaselineOptions()),
    "fastmax2, paper's scale": ("fastmax2", BaselineOptions(scale="paper")),
    "fastmax2": ("fastmax2", BaselineOptions(scale="sqrt")),
    "fastmax2, gated": ("fastmax2", BaselineOptions(scale="sqrt", decay="gated")),
    "fastmax2, as released": ("released", BaselineOptions()),
}
"""Attentions by name: that of `fastmax_lab.baselines`, and its options. Without a word on the scale it is 1 / sqrt(D), for
order 1 1 / D."""


@dataclass(frozen=True)
class VisionConfig:
    layers: int = 3
    dim: int = 96
    heads: int = 4
    mlp: int = 192
    attention_dropout: float = 0.0
    dropout_mode: str = "quadratic"


class VisionModel(nn.Module):
    """Pixels (B, 28, 28) in bytes -> logits (B, 10)."""

    def __init__(self, name: str, config: VisionConfig) -> None:
        super().__init__()
        kind, options = MODELS[name]
        preset = ModelPreset(config.layers, config.dim, config.dim, config.heads, config.mlp, 0.0, 0.0)
        options = replace(options, dropout=config.attention_dropout, dropout_mode=config.dropout_mode)
        self.patch = nn.Linear(PATCH**2, config.dim)
        self.cls = nn.Parameter(torch.zeros(1, 1, config.dim))
        self.positions = nn.Parameter(torch.randn(TOKENS, config.dim) / sqrt(config.dim))
        self.blocks = nn.ModuleList(
            EncoderBlock(
                preset,
                attention(
                    kind,
                    head_dim=config.dim // config.heads,
                    num_heads=config.heads,
                    max_length=TOKENS,
                    embed_dim=config.dim,
                    options=options,
                ),
            )
            for _ in range(config.layers)
        )
        self.head = nn.Sequential(nn.LayerNorm(config.dim), nn.Linear(config.dim, 10))

    def forward(self, images: Tensor) -> Tensor:
        x = (images.float() / 255 - 0.5).unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).flatten(1, 2).flatten(2)
        x = torch.cat((self.cls.expand(len(x), -1, -1), self.patch(x)), 1) + self.positions
        for block in self.blocks:
            x = block(x, None)
        logits: Tensor = self.head(x[:, 0])
        return logits


@torch.no_grad()
def score(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return mean loss and accuracy; leave the model in training mode."""
    model.eval()
    logits = torch.cat([model(part) for part in torch.split(images, 500)])
    model.train()
    return float(cross_entropy(logits, labels)), float((logits.argmax(-1) == labels).float().mean())
