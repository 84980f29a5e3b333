"""Presets: the model and the training of each task in three public harnesses, as functions that return frozen dataclasses."""

from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class ModelPreset:
    """The encoder. `qkv` is the width of all heads together."""

    layers: int = 2
    dim: int = 64
    qkv: int = 64
    heads: int = 2
    mlp: int = 128
    dropout: float = 0.1
    attention_dropout: float = 0.1
    positions: str = "learned"
    pool: str = "mean"
    vocabulary: int = 512
    performer_features: int = 128
    reformer_rounds: int = 2
    informer_factor: float = 128.0


@dataclass(frozen=True)
class TrainPreset:
    """The optimizer, AdamW with decoupled decay, and its schedule."""

    lr: float
    warmup: int
    batch: int
    steps: int
    schedule: str = "onecycle"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    weight_decay: float = 0.0
    clip_value: float | None = 1.0
    best_after: float = 0.2
    """The best checkpoint is looked for after this share of the steps."""


@dataclass(frozen=True)
class Preset:
    """`length` is given where a harness cuts a task shorter than the task says."""

    name: str
    model: ModelPreset
    train: TrainPreset
    length: int | None = None


def skyformer(task: str) -> Preset:
    """The harness of the paper: 2 layers, width 64, 2 heads of 32, mean pooling."""
    models = {"listops": ModelPreset(vocabulary=32), "image": ModelPreset(vocabulary=256)}
    trains = {
        "listops": TrainPreset(lr=1e-4, warmup=1000, batch=32, steps=50_000),
        "text": TrainPreset(lr=1e-4, warmup=80, batch=32, steps=50_000),
        "retrieval": TrainPreset(lr=2e-4, warmup=800, batch=16, steps=50_000),
        "image": TrainPreset(lr=1e-4, warmup=175, batch=256, steps=50_000),
        "pathfinder": TrainPreset(lr=2e-4, warmup=312, batch=128, steps=50_000),
    }
    return Preset("skyformer", models.get(task, ModelPreset()), trains[task])


def nystrom(task: str) -> Preset:
    """As `skyformer`, with the steps, rates and batches of the harness it came from."""
    base = skyformer(task)
    changes: dict[str, dict[str, float]] = {
        "listops": {"steps": 5_000},
        "text": {"warmup": 8000, "steps": 20_000},
        "retrieval": {"lr": 1e-4, "batch": 32, "steps": 30_000},
        "image": {"steps": 35_000},
        "pathfinder": {"lr": 1e-4, "batch": 256, "steps": 62_400},
    }
    model = replace(base.model, vocabulary=512) if task == "image" else base.model
    return Preset("nystrom", model, replace(base.train, **changes[task]))  # type: ignore[arg-type]


def google(task: str) -> Preset:
    """The original, of the authors of the benchmark."""
    models = {
        "listops": _google_model(4, 512, 512, 8, 1024),
        "text": _google_model(4, 256, 256, 4, 1024),
        "retrieval": _google_model(4, 128, 128, 4, 512),
        "image": replace(
            _google_model(1, 128, 64, 8, 128), dropout=0.3, attention_dropout=0.2, positions="learned", vocabulary=256
        ),
        "pathfinder": replace(_google_model(4, 32, 16, 4, 32), dropout=0.2, pool="mean"),
    }
    trains = {
        "listops": _google_train(0.05, 1000, 32, 5_000),
        "text": _google_train(0.05, 8000, 32, 20_000),
        "retrieval": _google_train(0.05, 8000, 32, 5_000),
        "image": replace(_google_train(5e-4, 175, 256, 35_000), schedule="cosine", weight_decay=0.0),
        "pathfinder": replace(_google_train(1e-3, 312, 512, 62_400), schedule="cosine", weight_decay=0.0),
    }
    return Preset("google", models[task], trains[task], length=1000 if task == "text" else None)


def _google_model(layers: int, dim: int, qkv: int, heads: int, mlp: int) -> ModelPreset:
    return ModelPreset(layers, dim, qkv, heads, mlp, positions="sinusoidal", pool="cls")


def _google_train(lr: float, warmup: int, batch: int, steps: int) -> TrainPreset:
    return TrainPreset(
        lr,
        warmup,
        batch,
        steps,
        "rsqrt",
        betas=(0.9, 0.98),
        eps=1e-9,
        weight_decay=0.1,
        clip_value=None,
        best_after=0.0,
    )


PRESETS: dict[str, Callable[[str], Preset]] = {"skyformer": skyformer, "nystrom": nystrom, "google": google}


def preset(name: str, task: str) -> Preset:
    if name not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
    return PRESETS[name](task)
