"""The settings of a model, of its training and of the log: frozen dataclasses that check themselves."""

from dataclasses import dataclass
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
