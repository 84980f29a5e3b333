"""The examples of each step: a function of (seed, step), so that a run resumes at any step without replay."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fastmax_lab._settings import SettingError
from fastmax_lab.lra.tasks import Split


@dataclass(frozen=True)
class Batch:
    """`lengths` is None where no token is padding."""

    tokens: Tensor
    lengths: Tensor | None
    labels: Tensor

    def to(self, device: torch.device) -> "Batch":
        lengths = None if self.lengths is None else self.lengths.to(device)
        return Batch(self.tokens.to(device), lengths, self.labels.to(device))


POOL = 32
"""Batches whose examples are sorted by length together: enough to leave little padding, few enough to mix examples."""


def training_rows(examples: int, batch: int, seed: int, step: int, *, lengths: np.ndarray | None = None) -> np.ndarray:
    """Return the examples of one step. Each epoch is a permutation; a batch may end one epoch and begin the next.

    With the `lengths` of all examples a batch holds examples of similar length: less padding, the same examples per epoch.
    """
    place = np.arange(step * batch, (step + 1) * batch)
    epochs = place // examples
    rows = [
        _order(examples, batch, seed, int(epoch), place[epochs == epoch] % examples, lengths)
        for epoch in np.unique(epochs)
    ]
    return np.concatenate(rows)


def _order(
    examples: int, batch: int, seed: int, epoch: int, places: np.ndarray, lengths: np.ndarray | None
) -> np.ndarray:
    """Return the examples at these places of an epoch."""
    order: np.ndarray = _permutation(examples, seed, epoch)
    if lengths is None:
        return np.take(order, places)
    size = POOL * batch
    pools: list[int] = np.unique(places // size).tolist()
    grouped: list[np.ndarray] = [
        _grouped(order[pool * size : (pool + 1) * size], batch, lengths, (seed, epoch, pool)) for pool in pools
    ]
    return np.concatenate(grouped).take(places - pools[0] * size)


def _grouped(rows: np.ndarray, batch: int, lengths: np.ndarray, seed: tuple[int, ...]) -> np.ndarray:
    """Sort examples by length, cut them into batches, and shuffle the batches."""
    rows = by_length(rows, lengths)
    cuts = [rows[i : i + batch] for i in range(0, len(rows), batch)]
    short = [cuts.pop()] if len(cuts[-1]) < batch else []  # stays last, or the batches after it would straddle two
    return np.concatenate([*(cuts[i] for i in np.random.default_rng(seed).permutation(len(cuts))), *short])


def by_length(rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Sort examples by length, the shortest first; of pairs the longer half counts."""
    own = np.asarray(lengths[rows])
    return rows[np.argsort(own if own.ndim == 1 else own.max(-1), kind="stable")]


@lru_cache(maxsize=2)
def _permutation(examples: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(examples)


def take(split: Split, rows: np.ndarray, *, trim: bool = True) -> Batch:
    """Return examples as tensors. `trim` cuts them to the longest, which changes no result as padding never counts."""
    tokens, lengths = split.tokens[rows], split.lengths[rows]
    if trim:
        tokens = tokens[..., : max(int(lengths.max()), 1)]
    padded = bool((lengths < tokens.shape[-1]).any())
    return Batch(
        torch.from_numpy(tokens.astype(np.int64)),
        torch.from_numpy(lengths.astype(np.int64)) if padded else None,
        torch.from_numpy(split.labels[rows].astype(np.int64)),
    )


def check_shards(batch: int, world: int) -> None:
    if batch % world:
        raise SettingError("batch", f"must be a multiple of the number of processes, got {batch} and {world}")


def shard(rows: np.ndarray, rank: int, world: int) -> np.ndarray:
    """Return the equal part of one process. With unequal parts a mean of gradients would not be the gradient of the mean."""
    check_shards(len(rows), world)
    part = len(rows) // world
    return rows[rank * part : (rank + 1) * part]


def in_order(
    examples: int, batch: int, *, start: int = 0, limit: int | None = None, whole: bool = False
) -> Iterator[np.ndarray]:
    """Yield every example once, or `limit` of them cyclically from `start` on; `whole` drops a last short batch."""
    count = examples if limit is None else min(limit, examples)
    for i in range(0, count, batch):
        rows = (start + np.arange(i, min(i + batch, count))) % examples
        if len(rows) == batch or not whole:
            yield rows
