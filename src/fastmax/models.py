"""FastmaxLM: a whole causal language model to read and to start from.

Pre-norm blocks, rotary positions, a forget gate per token and head, tied embeddings. It trains in time linear in the length
of the text, and generates with a memory that does not grow.
"""

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from fastmax.nn import FastmaxAttention


@dataclass(frozen=True)
class LMConfig:
    """`memory` says how many tokens the heads remember when they start (`FastmaxAttention`); `conv` is the number of tokens
    that a short causal convolution before each attention sees, 0 for none: it helps recall."""

    vocabulary: int
    layers: int = 4
    width: int = 256
    heads: int = 8
    mlp_ratio: int = 4
    order: int = 2
    scale: float | None = None
    normalize: bool | str = True
    rotary: bool = True
    decay: str | None = "gated"
    memory: tuple[float, float] = (2.0, 12.0)
    conv: int = 0
    dropout: float = 0.0


class ShortConv(nn.Module):
    """Each channel of a token mixed with that of the few tokens before it; starts as the identity."""

    def __init__(self, width: int, taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(taps, width))
        with torch.no_grad():
            self.weight[0] = 1

    def forward(self, x: Tensor, before: Tensor | None = None) -> Tensor:
        """(B, N, E) -> (B, N, E); `before` are the last inputs of what came before, (B, taps - 1, E)."""
        taps, tokens = len(self.weight), x.shape[1]
        x = pad(x, (0, 0, taps - 1, 0)) if before is None else torch.cat((before, x), 1)
        parts = [x[:, taps - 1 - i : taps - 1 - i + tokens] * self.weight[i] for i in range(taps)]
        return torch.stack(parts).sum(0)


class Block(nn.Module):
    """Attention, then a two-layer perceptron, each after a LayerNorm and added to its input."""

    def __init__(self, c: LMConfig, attention: type[FastmaxAttention]) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(c.width)
        self.conv = ShortConv(c.width, c.conv) if c.conv else None
        self.attention = attention(
            c.width,
            c.heads,
            dropout=c.dropout,
            batch_first=True,
            order=c.order,
            scale=c.scale,
            normalize=c.normalize,
            rotary=c.rotary,
            decay=c.decay,
            memory=c.memory,
        )
        self.mlp = nn.Sequential(
            nn.LayerNorm(c.width),
            nn.Linear(c.width, c.mlp_ratio * c.width),
            nn.GELU(),
            nn.Linear(c.mlp_ratio * c.width, c.width),
            nn.Dropout(c.dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.attention_norm(x)
        y = y if self.conv is None else self.conv(y)
        x = x + self.attention(y, y, y, is_causal=True, need_weights=False)[0]
        result: Tensor = x + self.mlp(x)
        return result


class FastmaxLM(nn.Module):
    """Tokens (B, N) -> logits of the next token at every place, (B, N, vocabulary)."""

    def __init__(self, config: LMConfig, attention: type[FastmaxAttention] = FastmaxAttention) -> None:
        """`attention` may be another layer of the same interface, to compare with."""
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(Block(config, attention) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        nn.init.normal_(self.tokens.weight, std=1 / sqrt(config.width))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self._logits(x)

    def _logits(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.norm(x), self.tokens.weight)

    def parameter_groups(self, weight_decay: float) -> list[dict[str, object]]:
        """For an optimizer: matrices decay; norms, biases, gates, convolutions and scales do not."""
        decayed: list[nn.Parameter] = []
        rest: list[nn.Parameter] = []
        for name, parameter in self.named_parameters():
            small = parameter.dim() < 2 or ".gate." in name or ".conv." in name
            (rest if small else decayed).append(parameter)
        return [{"params": decayed, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
