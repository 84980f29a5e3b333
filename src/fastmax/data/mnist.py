"""MNIST from its four idx files, compressed or not."""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np

from fastmax.data import files

NAMES = {"train": "train", "test": "t10k"}


def load(split: str, data: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images (count, 28, 28) and labels (count,), both bytes. Looks in `data` and in its folders mnist and MNIST/raw."""
    if split not in NAMES:
        raise ValueError(f"split must be train or test, got {split!r}")
    images = _idx(_find(data, f"{NAMES[split]}-images-idx3-ubyte"), 3)
    labels = _idx(_find(data, f"{NAMES[split]}-labels-idx1-ubyte"), 1)
    if len(images) != len(labels):
        raise ValueError(f"{data}: {len(images)} MNIST images but {len(labels)} labels")
    return images, labels


def _find(data: Path, name: str) -> Path:
    for folder in ("mnist", "MNIST/raw", "."):
        for suffix in (".gz", ""):
            path = data / folder / (name + suffix)
            if path.exists():
                return path
    raise files.missing("mnist", data, [f"mnist/{name}.gz"])


def _idx(path: Path, dimensions: int) -> np.ndarray:
    """A big-endian header, 0 0 8 (bytes) and the number of dimensions, then the sizes, then the values."""
    try:
        body = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{path} is damaged or cut short ({error}); delete it and get it again") from error
    start = 4 + 4 * dimensions
    if body[:4] != bytes([0, 0, 8, dimensions]) or len(body) < start:
        raise ValueError(f"{path}: expected an idx file of bytes with {dimensions} dimensions, got {body[:4]!r}")
    shape = struct.unpack_from(f">{dimensions}I", body, 4)
    values = np.frombuffer(body, np.uint8, offset=start)
    if values.size != np.prod(shape):
        raise ValueError(f"{path}: expected {' x '.join(map(str, shape))} values, got {values.size}")
    return values.reshape(shape)
