"""The settings of a model, of its training and of the log, and presets: frozen dataclasses that check themselves."""

from dataclasses import dataclass

from fastmax_lab._settings import check, setting


@dataclass(frozen=True)
class ModelPreset:
    """The encoder. `qkv` is the width of all heads together."""

    layers: int = 2
    dim: int = 64
    qkv: int = 64
    heads: int = 2
    mlp: int = 128
    dropout: float = setting("rate outside of the attention", default=0.1, at_least=0, below=1)
    attention_dropout: float = setting("rate inside of it", default=0.1, at_least=0, below=1)
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

    lr: float = setting("peak learning rate", above=0)
    warmup: int = setting("steps of warmup", at_least=0)
    batch: int = setting("examples per step, over all processes", at_least=1)
    steps: int = setting("optimizer steps", at_least=1)
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
    """`length` is given where a harness cuts a task shorter than the task says."""

    model: ModelPreset
    train: TrainPreset
    length: int | None = None


@dataclass(frozen=True)
class Pace:
    """How often to write what, in steps. It does not change the numbers of a run."""

    log_every: int = setting("steps between lines of the log", default=10, at_least=1)
    checkpoint_every: int = setting("steps between checkpoints", default=200, at_least=1)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class Processes:
    """How processes share the work. It does not change the numbers of a run, but for the order of sums and the dropout."""

    context_parallel: int = setting(
        "processes that share a sequence, under torchrun; fastmax only", default=1, at_least=1
    )

    def __post_init__(self) -> None:
        check(self)
