"""Image: the class of a CIFAR-10 image, from its grey pixels row by row."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fastmax_lab.data import archives, files
from fastmax_lab.data.blocks import ExampleBlock, Source
from fastmax_lab.data.registry import DataSet, Remote
from fastmax_lab.lra import harnesses
from fastmax_lab.lra.config import ModelPreset, TrainPreset
from fastmax_lab.lra.tasks import pixels
from fastmax_lab.lra.tasks.interface import PaperColumn, Task

TASK = Task("image", length=1024, vocabulary=256, classes=10, pair=False, pads=False)
_OFFICIAL = ("cifar-10-batches-bin", "cifar-10-binary.tar.gz")
_BATCHES = {"train": [f"data_batch_{n}.bin" for n in range(1, 6)], "test": ["test_batch.bin"]}
_GREY = np.array([0.2989, 0.5870, 0.1140], np.float32)
_SKYFORMER = harnesses.skyformer(lr=1e-4, warmup=175, batch=256, vocabulary=256)
PRESETS = {
    "skyformer": _SKYFORMER,
    "nystrom": harnesses.nystrom(_SKYFORMER, vocabulary=512, steps=35_000),
    "google": harnesses.google(
        ModelPreset(1, 128, 64, 8, 128, dropout=0.3, attention_dropout=0.2, pool="cls", vocabulary=256),
        TrainPreset(lr=5e-4, warmup=175, batch=256, steps=35_000, schedule="cosine"),
    ),
}
PAPER = PaperColumn(
    accuracy={
        "vanilla": 40.57,
        "informer": 37.55,
        "reformer": 43.72,
        "linear": 42.34,
        "performer": 39.78,
        "fastmax2": 43.18,
        "fastmax1": 42.76,
    },
    steps_per_second={"vanilla": 3.0, "fastmax2": 3.0, "fastmax1": 12.8},
)
DATA = DataSet(
    "image",
    "CIFAR-10, grey pixels",
    ((*_OFFICIAL, "cifar10_grey/train.bin.xz"),),
    (
        Remote(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "cifar-10-binary.tar.gz",
            170_052_171,
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
    ),
)


def source(data: Path, split: str, length: int, seed: int) -> Source:  # noqa: ARG001  (one signature for all tasks)
    """Return the source of a split. The last tenth of the training images is for validation."""
    part = "test" if split == "test" else "train"
    compact = f"cifar10_grey/{part}.bin.xz"
    found = files.find(data, [*_OFFICIAL, compact])
    if not found:
        raise files.missing(TASK.name, data, [*_OFFICIAL, compact])
    path = next(iter(found.values()))
    if path.name.endswith(".xz"):
        return Source((path,), {}, lambda: _blocks(_records(path, files.content(path), 1), split, length))
    parts = files.inside(TASK.name, path, _BATCHES[part]) if path.is_dir() else (path,)
    return Source(parts, {}, lambda: _blocks(_official(path, part), split, length))


def grey(rgb: np.ndarray) -> np.ndarray:
    """Convert (..., 3, 32, 32) bytes to (..., 32, 32), as TensorFlow's rgb_to_grayscale does for bytes."""
    unit = rgb.astype(np.float32) * np.float32(1 / 255)
    mixed = np.einsum("...chw,c->...hw", unit, _GREY)
    levels: np.ndarray = np.clip(mixed * np.float32(255.5), 0, 255).astype(np.uint8)
    return levels


def _blocks(images: tuple[np.ndarray, np.ndarray], split: str, length: int) -> Iterator[ExampleBlock]:
    labels, planes = images
    train = len(labels) * 9 // 10
    part = {"train": slice(None, train), "val": slice(train, None), "test": slice(None)}[split]
    yield pixels.block(planes[part], labels[part], length)


def _official(path: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    names = _BATCHES[part]
    found = {Path(name).name: body for name, body in archives.members(path, lambda name: Path(name).name in names)}
    absent = [name for name in names if name not in found]
    if absent:
        raise ValueError(f"{path} lacks {', '.join(absent)}: not whole")
    parts = [_records(path / name, found[name], 3) for name in names]
    return np.concatenate([p[0] for p in parts]), np.concatenate([grey(p[1]) for p in parts])


def _records(path: Path, body: bytes, channels: int) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and images of records, each a label and then the pixels, plane by plane."""
    size = 1 + channels * pixels.SIDE**2
    if not body or len(body) % size:
        raise ValueError(f"{path} has {len(body):,} bytes, which is no whole number of records of {size} bytes")
    records = np.frombuffer(body, np.uint8).reshape(-1, size)
    wrong = np.flatnonzero(records[:, 0] >= TASK.classes)
    if len(wrong):
        raise ValueError(f"{path}, record {wrong[0] + 1}: expected a label from 0 to 9, got {records[wrong[0], 0]}")
    planes = records[:, 1:].reshape(-1, channels, pixels.SIDE, pixels.SIDE)
    return records[:, 0], planes[:, 0] if channels == 1 else planes
