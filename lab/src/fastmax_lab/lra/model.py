"""The encoder of the Long Range Arena and its classifier; the attention is an argument."""

from collections.abc import Callable
from dataclasses import replace
from math import log

import torch
from torch import Tensor, nn

from fastmax.call import accumulation_dtype
from fastmax.nn.sharded import Sequence, SharesSequence
from fastmax_lab.baselines import BaselineOptions
from fastmax_lab.baselines.interface import Attention
from fastmax_lab.baselines.registry import attention
from fastmax_lab.lra.config import ModelPreset
from fastmax_lab.lra.layers import QuickDropout, QuickLinear
from fastmax_lab.lra.quirks import Quirks
from fastmax_lab.lra.tasks import Task

INIT_STD = 0.02
MakeAttention = Callable[[int], Attention]
"""A function of the largest number of tokens that returns a new attention layer."""


class SelfAttention(nn.Module):
    """Projections around an attention."""

    def __init__(self, preset: ModelPreset, inner: Attention) -> None:
        super().__init__()
        self.heads = preset.heads
        self.inner = inner
        self.project = QuickLinear(preset.dim, preset.qkv * (2 if inner.shares_keys else 3))
        self.out = QuickLinear(preset.qkv, preset.dim)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        parts = self.project(x).chunk(2 if self.inner.shares_keys else 3, -1)
        heads = [part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts]
        q, k, v = heads[0], heads[-2], heads[-1]
        forgets = {} if self.inner.gate is None else {"log_decay": self.inner.gate(x)}
        o: Tensor = self.inner(q, k, v, mask, **forgets)
        result: Tensor = self.out(o.transpose(1, 2).flatten(2))
        return result


class EncoderBlock(nn.Module):
    """Attention, then a two-layer perceptron, each after a LayerNorm and added to its input."""

    def __init__(self, preset: ModelPreset, inner: Attention) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(preset.dim)
        self.attention = SelfAttention(preset, inner)
        self.dropout = QuickDropout(preset.dropout)
        self.mlp = nn.Sequential(
            nn.LayerNorm(preset.dim),
            QuickLinear(preset.dim, preset.mlp),
            nn.GELU(),
            QuickDropout(preset.dropout),
            QuickLinear(preset.mlp, preset.dim),
            QuickDropout(preset.dropout),
        )

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), mask))
        result: Tensor = x + self.mlp(x)
        return result


class Encoder(nn.Module, SharesSequence):
    """Tokens (B, N) and how many of them are real (B,), or None if all are -> one vector per sequence, (B, dim).

    Where processes share a sequence the tokens are those of one of them, the numbers of real ones those of all, and the
    vector is the same everywhere.
    """

    positions: Tensor

    def __init__(
        self, preset: ModelPreset, make_attention: MakeAttention, *, length: int, vocabulary: int, quirks: Quirks
    ) -> None:
        super().__init__()
        if preset.pool not in ("mean", "cls") or preset.positions not in ("learned", "sinusoidal"):
            raise ValueError(
                f"pool must be mean or cls and positions learned or sinusoidal, got {preset.pool}, {preset.positions}"
            )
        self.quirks = quirks
        self.tokens = nn.Embedding(vocabulary, preset.dim)
        nn.init.normal_(self.tokens.weight, std=INIT_STD)
        self.cls = nn.Parameter(torch.zeros(1, 1, preset.dim)) if preset.pool == "cls" else None
        length += self.cls is not None
        if preset.positions == "learned":
            self.positions = nn.Parameter(torch.empty(length, preset.dim).normal_(std=INIT_STD))
        else:
            self.register_buffer("positions", sinusoidal(length, preset.dim), persistent=False)
        self.dropout = QuickDropout(preset.dropout)
        self.blocks = nn.ModuleList(EncoderBlock(preset, make_attention(length)) for _ in range(preset.layers))
        self.norm = nn.LayerNorm(preset.dim)

    def forward(self, tokens: Tensor, lengths: Tensor | None) -> Tensor:
        start = 0 if self.sequence is None else self.sequence.starts((tokens.shape[1],), tokens.device)[0]
        mask = self._mask(tokens, lengths, start)
        x = self.tokens(tokens)
        if self.cls is not None:
            # before the first token of all
            count = 1 if self.sequence is None or self.sequence.is_first else 0
            x = torch.cat((self.cls.expand(len(x), -1, -1)[:, :count], x), 1)
            mask = None if mask is None else nn.functional.pad(mask, (count, 0), value=True)
            start += 1 - count
        x = self.dropout(x + self.positions[start : start + x.shape[1]])
        for block in self.blocks:
            x = block(x, mask)
        return self._pooled(self.norm(x), mask)

    def _mask(self, tokens: Tensor, lengths: Tensor | None, start: int = 0) -> Tensor | None:
        if self.quirks.zero_is_padding:
            return tokens != 0
        if lengths is None:
            return None
        return torch.arange(start, start + tokens.shape[1], device=tokens.device) < lengths.unsqueeze(1)

    def _pooled(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if self.cls is None:
            return mean_pool(x, mask, over_all=self.quirks.full_length_mean, sequence=self.sequence)
        if self.sequence is None:
            return x[:, 0]
        return self.sequence.total(x[:, :1].sum(1) * self.sequence.is_first)


class Classifier(nn.Module):
    """Tokens (B, N), or (B, 2, N) for pairs -> logits (B, classes)."""

    def __init__(self, task: Task, preset: ModelPreset, make_attention: MakeAttention, quirks: Quirks) -> None:
        super().__init__()
        self.encoder = Encoder(
            preset,
            make_attention,
            length=task.length,
            vocabulary=max(preset.vocabulary, task.vocabulary),
            quirks=quirks,
        )
        self.head = nn.Sequential(
            nn.Linear(preset.dim * (4 if task.pair else 1), preset.mlp), nn.ReLU(), nn.Linear(preset.mlp, task.classes)
        )

    def forward(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        pair = tokens.dim() == 3
        if pair:
            tokens = tokens.flatten(0, 1)
            lengths = None if lengths is None else lengths.flatten()
        x = self.encoder(tokens, lengths)
        if pair:
            a, b = x.unflatten(0, (-1, 2)).unbind(1)
            x = torch.cat((a, b, a * b, a - b), -1)
        logits: Tensor = self.head(x)
        return logits


def classifier(
    task: Task, preset: ModelPreset, name: str, *, options: BaselineOptions | None = None, quirks: Quirks | None = None
) -> Classifier:
    """Return a model of the preset with the attention of that name; `options` default to the preset's."""
    if preset.qkv % preset.heads:
        raise ValueError(f"qkv must be divisible by heads, got {preset.qkv} and {preset.heads}")
    options = attention_options(preset) if options is None else options

    def make(length: int) -> Attention:
        return attention(
            name,
            head_dim=preset.qkv // preset.heads,
            num_heads=preset.heads,
            max_length=length,
            embed_dim=preset.dim,
            options=options,
        )

    return Classifier(task, preset, make, Quirks() if quirks is None else quirks)


def attention_options(preset: ModelPreset, base: BaselineOptions | None = None) -> BaselineOptions:
    """Return the preset's options; the rest as in `base`."""
    return replace(
        BaselineOptions() if base is None else base,
        dropout=preset.attention_dropout,
        performer_features=preset.performer_features,
        reformer_rounds=preset.reformer_rounds,
        informer_factor=preset.informer_factor,
    )


def mean_pool(x: Tensor, mask: Tensor | None, *, over_all: bool = False, sequence: Sequence | None = None) -> Tensor:
    """Average over real tokens, or divide their sum by the full length, (B, N, dim) -> (B, dim)."""
    if mask is None and sequence is None:
        return x.mean(1)
    mask = x.new_ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
    count = (torch.ones_like(mask) if over_all else mask).sum(1, keepdim=True)
    count = (count if sequence is None else sequence.total(count)).clamp(min=1)
    mean = ((mask.to(accumulation_dtype(x.dtype)) / count).to(x.dtype).unsqueeze(1) @ x).squeeze(1)
    return mean if sequence is None else sequence.total(mean)


def sinusoidal(length: int, dim: int) -> Tensor:
    """Return (length, dim): sines in the first half of the channels, cosines in the second (Vaswani et al. 2017)."""
    half = (dim + 1) // 2
    angle = torch.arange(length)[:, None] * torch.exp(torch.arange(half) * (-log(10000.0) / max(half - 1, 1)))
    return torch.cat((angle.sin(), angle.cos()), 1)[:, :dim]
