"""The output of a reader or a generator: the files it reads, and the examples in blocks."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

T = TypeVar("T")


class ExampleBlock(NamedTuple):
    """Some examples: the columns of a Split, in memory."""

    tokens: np.ndarray
    lengths: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Source:
    """`files` and `options` are all that shapes the examples beside the task, the split and the length."""

    files: tuple[Path, ...]
    options: dict[str, int]
    blocks: Callable[[], Iterator[ExampleBlock]]
    count: int | None = None  # how many examples are taken; None: all there are


def batches(rows: Iterable[T], size: int = 512) -> Iterator[list[T]]:
    iterator = iter(rows)
    while batch := list(islice(iterator, size)):
        yield batch


def pack(texts: list[bytes], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return byte strings as rows of tokens, byte + 1 and cut to `length`, with 0 behind them; and their lengths."""
    cut = [text[:length] for text in texts]
    lengths = np.array([len(text) for text in cut], np.int32)
    tokens = np.zeros((len(cut), length), np.uint16)
    tokens[np.arange(length) < lengths[:, None]] = np.frombuffer(b"".join(cut), np.uint8).astype(np.uint16) + 1
    return tokens, lengths
