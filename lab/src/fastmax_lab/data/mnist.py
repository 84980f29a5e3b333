"""MNIST from its four idx files, compressed or not."""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np

from fastmax_lab.data import files
from fastmax_lab.data.registry import DataSet, Remote

NAMES = {"train": "train", "test": "t10k"}
_FILES = {
    "train-images-idx3": (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    "train-labels-idx1": (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    "t10k-images-idx3": (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    "t10k-labels-idx1": (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
}
DATA = DataSet(
    "mnist",
    "handwritten digits",
    tuple((f"mnist/{name}-ubyte.gz",) for name in _FILES),
    tuple(
        Remote(f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}-ubyte.gz", f"mnist/{name}-ubyte.gz", size, sha256)
        for name, (size, sha256) in _FILES.items()
    ),
)


def load(split: str, data: Path) -> tuple[np.ndarray, np.ndarray]:
    """Load images (count, 28, 28) and labels (count,), both bytes. Looks in `data` and in its folders mnist and MNIST/raw."""
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
    """Read a big-endian header, 0 0 8 (bytes) and the number of dimensions, then the sizes, then the values."""
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
