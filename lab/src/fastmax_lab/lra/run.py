"""RunConfig: everything that decides the numbers of a training run, as JSON and back."""

import json
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from fastmax._choices import DROPOUT_MODES
from fastmax_lab._settings import check, rules, setting
from fastmax_lab.baselines import DECAYS, NAMES, SCALES, Options
from fastmax_lab.lra import presets, tasks
from fastmax_lab.lra.config import ModelPreset, TrainPreset
from fastmax_lab.lra.quirks import Quirks

if TYPE_CHECKING:
    from fastmax_lab.lra.model import Classifier


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Two runs with equal configurations, on equal machines, give equal numbers."""

    task: str = setting("what to learn", choices=tasks.names())
    attention: str = setting("what to learn it with", default="fastmax2", choices=NAMES)
    preset: str = setting("the harness whose settings to take", default="skyformer", choices=presets.NAMES)
    model: ModelPreset
    train: TrainPreset
    scale: str = setting("of fastmax", default=Options.scale, choices=SCALES)
    decay: str = setting("of fastmax and softmax, in both directions", default=Options.decay, choices=DECAYS)
    standardized: bool = setting("of softmax: standardized queries and keys", default=Options.standardized)
    dropout_mode: str = setting("of fastmax", default=Options.dropout_mode, choices=DROPOUT_MODES)
    seed: int = setting("of weights, order and dropout", default=0, at_least=0, below=2**63)
    length: int | None = setting("cut sequences to so many tokens", default=None, at_least=1)
    train_examples: int | None = setting("use only the first so many", default=None, at_least=1)
    group_lengths: bool = setting("batches of examples of similar length: less padding", default=False)
    eval_examples: int | None = setting("use only the first so many of dev and test", default=None, at_least=1)
    eval_every: int | None = setting(
        "steps between looks at the dev set (default: a twentieth of all)", default=None, at_least=1
    )
    precision: str = setting("fp32 (no) or autocast", default="no", choices=("no", "bf16"))
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
        """`name: mine, not theirs` for each setting that differs."""
        mine, theirs = (_flat(asdict(config)) for config in (self, other))
        return [f"{name}: {mine[name]}, not {theirs[name]}" for name in mine if mine[name] != theirs[name]]

    @property
    def evaluation_steps(self) -> int:
        """Steps between looks at the dev set."""
        return max(1, self.train.steps // 20) if self.eval_every is None else self.eval_every

    def task_shape(self) -> tasks.Task:
        return tasks.task(self.task, length=self.length)

    def make_model(self) -> "Classifier":
        from fastmax_lab.lra.model import attention_options, classifier  # needs torch, which a configuration does not

        options = attention_options(
            self.model,
            Options(scale=self.scale, decay=self.decay, dropout_mode=self.dropout_mode, standardized=self.standardized),
        )
        return classifier(self.task_shape(), self.model, self.attention, options=options, quirks=self.quirks)


def configure(task: str, attention: str, **changes: Any) -> RunConfig:
    """The configuration of a preset with `changes`: settings of RunConfig, ModelPreset and TrainPreset, as in `replace`.

    A schedule shortened below its warmup warms up for a tenth of it. ValueError names a setting that cannot be.
    """
    own = {f.name for f in fields(RunConfig)} - {"model", "train"}
    unknown = changes.keys() - own - names(ModelPreset) - names(TrainPreset)
    if unknown:
        raise ValueError(f"unknown settings: {', '.join(sorted(unknown))}")
    base = presets.preset(changes.get("preset", _PRESET), task)
    train = replace(base.train, **_among(names(TrainPreset), changes))
    if "warmup" not in changes and train.warmup >= train.steps:
        train = replace(train, warmup=max(1, train.steps // 10))
    model = replace(base.model, **_among(names(ModelPreset), changes))
    config = RunConfig(task=task, attention=attention, model=model, train=train, **_among(own, changes))
    if config.length is None:
        config = replace(config, length=1000 if config.quirks.text_1000 and task == "text" else base.length)
    config.task_shape()  # refuses a length that the task cannot have
    return replace(config, eval_every=config.evaluation_steps)


def names(kind: type) -> set[str]:
    """The settings of a dataclass."""
    return {f.name for f, _ in rules(kind)}


def _among(wanted: set[str], changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in changes.items() if name in wanted}


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in values.items():
        result |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return result


_PRESET = next(f.default for f, _ in rules(RunConfig) if f.name == "preset")
