"""The configuration of a run: everything that decides the numbers of a training run, as JSON and back."""

import json
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any

from fastmax_lab._settings import OneOf, Range, check
from fastmax_lab.baselines import DECAYS, DROPOUT_MODES, NAMES, SCALES, BaselineOptions
from fastmax_lab.lra import presets, tasks
from fastmax_lab.lra.config import COUNT, ModelPreset, TrainPreset
from fastmax_lab.lra.quirks import Quirks

if TYPE_CHECKING:
    from fastmax_lab.lra.model import Classifier

PRECISIONS = ("no", "bf16")
"""Precisions of autocast; "no" is fp32."""

SEED = Range(at_least=0, below=2**63)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The settings of a run. Equal configurations on equal machines give equal numbers."""

    task: Annotated[str, OneOf(tasks.names())]
    attention: Annotated[str, OneOf(NAMES)] = "fastmax2"
    preset: Annotated[str, OneOf(presets.NAMES)] = presets.NAMES[0]
    """The harness whose settings to take."""
    model: ModelPreset
    train: TrainPreset
    scale: Annotated[str, OneOf(SCALES)] = BaselineOptions.scale
    decay: Annotated[str, OneOf(DECAYS)] = BaselineOptions.decay
    standardized: bool = BaselineOptions.standardized
    """Softmax attends to standardized queries and keys."""
    dropout_mode: Annotated[str, OneOf(DROPOUT_MODES)] = BaselineOptions.dropout_mode
    seed: Annotated[int, SEED] = 0
    """The seed of weights, order and dropout."""
    length: Annotated[int | None, COUNT] = None
    """The number of tokens that sequences are cut to."""
    train_examples: Annotated[int | None, COUNT] = None
    group_lengths: bool = False
    """Batches are of examples of similar length."""
    eval_examples: Annotated[int | None, COUNT] = None
    eval_every: Annotated[int | None, COUNT] = None
    """Steps between scores on the dev set."""
    precision: Annotated[str, OneOf(PRECISIONS)] = "no"
    quirks: Quirks = field(default_factory=Quirks)

    def __post_init__(self) -> None:
        check(self)

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
        """Return `name: mine, not theirs` for each setting that differs."""
        mine, theirs = (_flat(asdict(config)) for config in (self, other))
        return [f"{name}: {mine[name]}, not {theirs[name]}" for name in mine if mine[name] != theirs[name]]

    @property
    def evaluation_steps(self) -> int:
        """Return the steps between looks at the dev set."""
        return max(1, self.train.steps // 20) if self.eval_every is None else self.eval_every

    def task_shape(self) -> tasks.Task:
        return tasks.task(self.task, length=self.length)

    def make_model(self) -> "Classifier":
        from fastmax_lab.lra.model import attention_options, classifier  # needs torch, which a configuration does not

        options = attention_options(
            self.model,
            BaselineOptions(
                scale=self.scale, decay=self.decay, dropout_mode=self.dropout_mode, standardized=self.standardized
            ),
        )
        return classifier(self.task_shape(), self.model, self.attention, options=options, quirks=self.quirks)


def configure(task: str, attention: str, **changes: Any) -> RunConfig:
    """Change a preset's configuration by settings of RunConfig, ModelPreset and TrainPreset, as `replace` does.

    A schedule shortened below its warmup warms up for a tenth of it. ValueError names a setting that cannot be.
    """
    own = _names(RunConfig) - {"model", "train"}
    unknown = changes.keys() - own - _names(ModelPreset) - _names(TrainPreset)
    if unknown:
        raise ValueError(f"unknown settings: {', '.join(sorted(unknown))}")
    base = presets.preset(changes.get("preset", RunConfig.preset), task)
    train = replace(base.train, **_among(_names(TrainPreset), changes))
    if "warmup" not in changes and train.warmup >= train.steps:
        train = replace(train, warmup=max(1, train.steps // 10))
    model = replace(base.model, **_among(_names(ModelPreset), changes))
    config = RunConfig(task=task, attention=attention, model=model, train=train, **_among(own, changes))
    if config.length is None:
        config = replace(config, length=1000 if config.quirks.text_1000 and task == "text" else base.length)
    config.task_shape()  # refuses a length that the task cannot have
    return replace(config, eval_every=config.evaluation_steps)


def _names(kind: type[RunConfig | ModelPreset | TrainPreset]) -> set[str]:
    return {f.name for f in fields(kind)}


def _among(wanted: set[str], changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in changes.items() if name in wanted}


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in values.items():
        result |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return result
