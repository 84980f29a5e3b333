"""The settings of a model, of its training and of the log: frozen dataclasses that check themselves."""

from dataclasses import dataclass
from math import cos, pi, sqrt
from typing import Annotated

from fastmax_lab._settings import Range, check

RATE = Range(at_least=0, below=1)
COUNT = Range(at_least=1)


@dataclass(frozen=True)
class ModelPreset:
    """The encoder. `qkv` is the width of all heads together."""

    layers: int = 2
    dim: int = 64
    qkv: int = 64
    heads: int = 2
    mlp: int = 128
    dropout: Annotated[float, RATE] = 0.1
    attention_dropout: Annotated[float, RATE] = 0.1
    positions: str = "learned"
    pool: str = "mean"
    vocabulary: int = 512
    performer_features: int = 128
    reformer_rounds: int = 2
    informer_factor: float = 128.0

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class TrainPreset:
    """The optimizer, AdamW with decoupled decay, and its schedule."""

    lr: Annotated[float, Range(above=0)]
    warmup: Annotated[int, Range(at_least=0)]
    batch: Annotated[int, COUNT]
    """Examples per step, over all processes."""
    steps: Annotated[int, COUNT]
    schedule: str = "onecycle"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    weight_decay: float = 0.0
    clip_value: float | None = 1.0
    best_after: float = 0.2
    """The best checkpoint is looked for after this share of the steps."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class Preset:
    """The settings of one harness for one task. `length` is given where the harness cuts the task shorter."""

    model: ModelPreset
    train: TrainPreset
    length: int | None = None


@dataclass(frozen=True)
class Intervals:
    """Steps between writes. They do not change the numbers of a run."""

    log_every: Annotated[int, COUNT] = 10
    checkpoint_every: Annotated[int, COUNT] = 200

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class Processes:
    """The division of work among processes. It changes the order of sums and the dropout, no other number of a run."""

    context_parallel: Annotated[int, COUNT] = 1
    """Processes that share a sequence."""

    def __post_init__(self) -> None:
        check(self)


DIV, FINAL_DIV = 25.0, 1e4
"""OneCycle starts at lr / DIV and ends at lr / DIV / FINAL_DIV, as in PyTorch."""


def learning_rate(train: TrainPreset, step: int) -> float:
    """Return the rate of the step, counted from 0."""
    if train.schedule == "onecycle":
        return _one_cycle(train, step)
    if train.schedule == "rsqrt":
        # unnormalised: the peak is lr / sqrt(warmup)
        return train.lr * min(1.0, (step + 1) / max(train.warmup, 1)) / sqrt(max(step + 1, train.warmup))
    if train.schedule == "cosine":
        if step < train.warmup:
            return train.lr * (step + 1) / train.warmup
        progress = (step - train.warmup) / max(train.steps - train.warmup, 1)
        return train.lr * 0.5 * (1 + cos(pi * min(progress, 1.0)))
    raise ValueError(f"schedule must be onecycle, rsqrt or cosine, got {train.schedule!r}")


def _one_cycle(train: TrainPreset, step: int) -> float:
    """Rise linearly to step warmup - 1, then fall linearly to the last step."""
    start, end = train.lr / DIV, train.lr / DIV / FINAL_DIV
    top = min(train.warmup, train.steps) - 1
    if step < top:
        return start + (train.lr - start) * step / top
    return train.lr + (end - train.lr) * (step - max(top, 0)) / max(train.steps - 1 - max(top, 0), 1)
