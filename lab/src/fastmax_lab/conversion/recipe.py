"""The settings of a conversion as plain values, which a checkpoint must match."""

import json
from dataclasses import asdict, dataclass
from math import cos, pi

TRAINED = ("queries_keys", "attention", "all")


@dataclass(frozen=True)
class Stage:
    """A stage of AdamW without weight decay. The rates rise over the first tenth of the steps, then fall to 0 by a cosine.

        >>> Stage(steps=100, lr=1e-3).train
        'queries_keys'

    Attributes:
        steps: the number of batches; 0 skips the stage.
        lr: of the model's own weights.
        scale_lr: of the scales that conversion adds, which start far from where they end.
        gate_lr: the same for the gates.
        train: which of the model's own weights learn: "queries_keys" (all of an attention module but what makes values and
            outputs), "attention" (all of it) or "all" (the whole model; for the second stage).
    """

    steps: int
    lr: float
    scale_lr: float = 3e-2
    gate_lr: float = 3e-2
    train: str = "queries_keys"

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"steps must be 0 or more, got {self.steps}")
        for name in ("lr", "scale_lr", "gate_lr"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)}")
        if self.train not in TRAINED:
            raise ValueError(f"train must be one of {', '.join(TRAINED)}, got {self.train!r}")

    def warmth(self, step: int) -> float:
        """Return the factor of the learning rates at a step, counted from 0."""
        done = (step + 1) / self.steps
        return done / 0.1 if done < 0.1 else 0.5 * (1 + cos(pi * (done - 0.1) / 0.9))


@dataclass(frozen=True)
class Recipe:
    """All that decides the result beside the teacher and the batches."""

    order: int
    decay: str | None
    memory: tuple[float, float]
    normalize: bool | str | None
    learn_scale: bool
    windows: tuple[tuple[str, int], ...]
    transfer: Stage
    distill: Stage
    loss: str
    held_out: int
    keep_best: bool = True
    qk_head_dim: int | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    def differences(self, other: str) -> list[str]:
        """Return `name: mine, not theirs` for each setting that differs from those that `to_json` wrote."""
        mine, theirs = json.loads(self.to_json()), json.loads(other)
        return [f"{name}: {mine[name]}, not {theirs.get(name)}" for name in mine if mine[name] != theirs.get(name)]
