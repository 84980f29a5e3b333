"""The parts of a task module: the task's shape, its presets, its data set, the paper's figures, a reader."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from fastmax_lab.data.blocks import Source
from fastmax_lab.data.registry import DataSet
from fastmax_lab.lra.config import Preset


@dataclass(frozen=True)
class Split:
    """One split of a task; the arrays are memory-mapped."""

    tokens: np.ndarray  # (examples, length), or (examples, 2, length) for pairs; unsigned integers; 0 is padding
    lengths: np.ndarray  # (examples,) or (examples, 2): how many tokens are real
    labels: np.ndarray  # (examples,), int64


@dataclass(frozen=True)
class Task:
    """The properties of a task that a model needs."""

    name: str
    length: int
    vocabulary: int  # rows of the embedding table in the paper's harness; every token is below it
    classes: int
    pair: bool  # two sequences per example
    pads: bool  # whether sequences are padded at all: images are not, and their 0 is black


@dataclass(frozen=True)
class PaperColumn:
    """The paper's figures for a task, by attention: test accuracy in per cent, training steps per second on an RTX A5000."""

    accuracy: Mapping[str, float]
    steps_per_second: Mapping[str, float]


class TaskModule(Protocol):
    """Presets are by harness."""

    @property
    def TASK(self) -> Task: ...  # noqa: N802
    @property
    def PRESETS(self) -> Mapping[str, Preset]: ...  # noqa: N802
    @property
    def PAPER(self) -> PaperColumn: ...  # noqa: N802
    @property
    def DATA(self) -> DataSet: ...  # noqa: N802

    def source(self, data: Path, split: str, length: int, seed: int) -> Source: ...
