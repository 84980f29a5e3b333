"""What a task looks like to a model, and what its examples are."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Split:
    """One split of a task; the arrays are memory-mapped."""

    tokens: np.ndarray  # (examples, length), or (examples, 2, length) for pairs; unsigned integers; 0 is padding
    lengths: np.ndarray  # (examples,) or (examples, 2): how many tokens are real
    labels: np.ndarray  # (examples,), int64


@dataclass(frozen=True)
class Task:
    """Everything that a model needs to know of a task."""

    name: str
    length: int
    vocabulary: int  # rows of the embedding table in the paper's harness; every token is below it
    classes: int
    pair: bool  # two sequences per example
    pads: bool  # whether sequences are padded at all: images are not, and their 0 is black
