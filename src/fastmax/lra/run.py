"""RunConfig: everything that decides the numbers of a training run, as JSON and back."""

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fastmax.lra import tasks
from fastmax.lra.model import Classifier, attention_options, classifier
from fastmax.lra.presets import ModelPreset, TrainPreset, preset
from fastmax.lra.quirks import Quirks

PRECISIONS = ("no", "bf16")


@dataclass(frozen=True)
class RunConfig:
    """Two runs with equal configurations, on equal machines, give equal numbers."""

    task: str
    attention: str
    model: ModelPreset
    train: TrainPreset
    preset: str = "skyformer"
    scale: str = "sqrt"
    dropout_mode: str = "quadratic"
    seed: int = 0
    length: int | None = None
    train_examples: int | None = None
    eval_examples: int | None = None
    eval_every: int = 1000
    precision: str = "no"
    quirks: Quirks = field(default_factory=Quirks)

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> "RunConfig":
        values = json.loads(text)
        train = values.pop("train")
        train["betas"] = tuple(train["betas"])
        return RunConfig(
            model=ModelPreset(**values.pop("model")),
            train=TrainPreset(**train),
            quirks=Quirks(**values.pop("quirks")),
            **values,
        )

    def differences(self, other: "RunConfig") -> list[str]:
        """`name: mine, not theirs` for each setting that differs."""
        mine, theirs = (_flat(asdict(config)) for config in (self, other))
        return [f"{name}: {mine[name]}, not {theirs[name]}" for name in mine if mine[name] != theirs[name]]

    def task_shape(self) -> tasks.Task:
        return tasks.task(self.task, length=self.length)

    def make_model(self) -> Classifier:
        options = attention_options(self.model, scale=self.scale, dropout_mode=self.dropout_mode)
        return classifier(self.task_shape(), self.model, self.attention, options=options, quirks=self.quirks)


def configure(
    task: str,
    attention: str,
    *,
    preset_name: str = "skyformer",
    steps: int | None = None,
    batch: int | None = None,
    lr: float | None = None,
    warmup: int | None = None,
    dropout: float | None = None,
    attention_dropout: float | None = None,
    length: int | None = None,
    eval_every: int | None = None,
    quirks: Quirks | None = None,
    scale: str = "sqrt",
    dropout_mode: str = "quadratic",
    seed: int = 0,
    train_examples: int | None = None,
    eval_examples: int | None = None,
    precision: str = "no",
) -> RunConfig:
    """A preset with what the user gave in its place. A schedule shortened below its warmup warms up for a tenth of it."""
    if task not in tasks.names():
        raise ValueError(f"task must be one of {', '.join(tasks.names())}, got {task!r}")
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    chosen = preset(preset_name, task)
    given = {"steps": steps, "batch": batch, "lr": lr, "warmup": warmup}
    train = replace(chosen.train, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    if min(train.steps, train.batch) < 1:
        raise ValueError(f"steps and batch must be at least 1, got {train.steps} and {train.batch}")
    if warmup is None and train.warmup >= train.steps:
        train = replace(train, warmup=max(1, train.steps // 10))
    rates = {"dropout": dropout, "attention_dropout": attention_dropout}
    model = replace(chosen.model, **{name: value for name, value in rates.items() if value is not None})  # type: ignore[arg-type]
    quirks = Quirks() if quirks is None else quirks
    if length is None:
        length = 1000 if quirks.text_1000 and task == "text" else chosen.length
    return RunConfig(
        task=task,
        attention=attention,
        model=model,
        train=train,
        preset=preset_name,
        scale=scale,
        dropout_mode=dropout_mode,
        seed=seed,
        length=length,
        train_examples=train_examples,
        eval_examples=eval_examples,
        eval_every=max(1, train.steps // 20) if eval_every is None else eval_every,
        precision=precision,
        quirks=quirks,
    )


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in values.items():
        result |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return result
