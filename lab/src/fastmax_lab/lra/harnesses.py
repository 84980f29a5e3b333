"""The settings that each of three public harnesses has in every task; a task module gives the rest, one row per harness."""

from dataclasses import replace
from typing import Any

from fastmax_lab.lra.config import ModelPreset, Preset, TrainPreset


def skyformer(*, lr: float, warmup: int, batch: int, vocabulary: int = 512) -> Preset:
    """Return the harness whose softmax row the paper has: 2 layers, width 64, 2 heads of 32, mean pooling, 50,000 steps."""
    return Preset(ModelPreset(vocabulary=vocabulary), TrainPreset(lr, warmup, batch, steps=50_000))


def nystrom(base: Preset, *, vocabulary: int | None = None, **train: Any) -> Preset:
    """Return the harness that `skyformer` came from: the same but for steps, rates and batches."""
    model = base.model if vocabulary is None else replace(base.model, vocabulary=vocabulary)
    return Preset(model, replace(base.train, **train))


def google(model: ModelPreset, train: TrainPreset, *, length: int | None = None) -> Preset:
    """Return the harness of the benchmark's authors: betas, eps, no clipping, the best checkpoint of all steps."""
    return Preset(model, replace(train, betas=(0.9, 0.98), eps=1e-9, clip_value=None, best_after=0.0), length)


def google_bytes(layers: int, dim: int, heads: int, mlp: int) -> ModelPreset:
    """Return their encoder of symbols and bytes: sinusoidal positions and a CLS token."""
    return ModelPreset(layers, dim, dim, heads, mlp, positions="sinusoidal", pool="cls")


def google_rsqrt(*, warmup: int, steps: int) -> TrainPreset:
    """Return their training of it."""
    return TrainPreset(0.05, warmup, batch=32, steps=steps, schedule="rsqrt", weight_decay=0.1)
