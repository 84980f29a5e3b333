"""Pathfinder: whether a dashed contour joins the two dots of an image, from its pixels row by row."""

import struct
import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path, PurePath

import numpy as np

from fastmax_lab.data import files
from fastmax_lab.data.blocks import ExampleBlock, Source, batches
from fastmax_lab.data.registry import BY_HAND, DataSet
from fastmax_lab.lra import harnesses
from fastmax_lab.lra.config import ModelPreset, TrainPreset
from fastmax_lab.lra.generators import pathfinder_images
from fastmax_lab.lra.tasks import pixels
from fastmax_lab.lra.tasks.interface import PaperColumn, Task

TASK = Task("pathfinder", length=1024, vocabulary=512, classes=2, pair=False, pads=False)
SIZES = {"train": 160_000, "val": 20_000, "test": 20_000}
_FOLDER = "pathfinder32/curv_contour_length_14"
_SKYFORMER = harnesses.skyformer(lr=2e-4, warmup=312, batch=128)
PRESETS = {
    "skyformer": _SKYFORMER,
    "nystrom": harnesses.nystrom(_SKYFORMER, lr=1e-4, batch=256, steps=62_400),
    "google": harnesses.google(
        ModelPreset(4, 32, 16, 4, 32, dropout=0.2, positions="sinusoidal"),
        TrainPreset(lr=1e-3, warmup=312, batch=512, steps=62_400, schedule="cosine"),
    ),
}
PAPER = PaperColumn(
    accuracy={
        "vanilla": 65.26,
        "informer": 50.33,
        "reformer": 66.40,
        "linear": 75.30,
        "performer": 67.41,
        "fastmax2": 66.55,
        "fastmax1": 66.67,
    },
    steps_per_second={"vanilla": 6.1, "fastmax2": 6.8, "fastmax1": 24.4},
)
DATA = DataSet(
    "pathfinder",
    "dashed contours, pixels",
    ((_FOLDER,),),
    generated=True,
    hint=f"Pathfinder is generated on first use: nothing to fetch. {BY_HAND}",
)


def source(data: Path, split: str, length: int, seed: int) -> Source:
    found = files.find(data, [_FOLDER])
    if found:
        lists = sorted((found[_FOLDER] / "metadata").glob("*.npy"), key=lambda p: (len(p.name), p.name))
        if not lists:
            raise files.missing(TASK.name, data, [f"{_FOLDER}/metadata/*.npy"])
        return Source(tuple(lists), {}, lambda: _official(found[_FOLDER], lists, split, length))
    return Source((), {"seed": seed, "recipe": 1}, lambda: _generated(seed, split, length), SIZES[split])


def _generated(seed: int, split: str, length: int) -> Iterator[ExampleBlock]:
    rng = np.random.default_rng([seed, list(SIZES).index(split)])
    for images, labels in pathfinder_images.generate(rng):
        yield pixels.block(images, labels, length)


def _official(folder: Path, lists: list[Path], split: str, length: int) -> Iterator[ExampleBlock]:
    """Yield the official blocks: in the order of the lists, 80 % for training, 10 % for validation, 10 % for the test."""
    rows = [row for path in lists for row in _listed(folder, path)]
    first, second = len(rows) * 8 // 10, len(rows) * 9 // 10
    part = {"train": rows[:first], "val": rows[first:second], "test": rows[second:]}[split]
    for batch in batches(part):
        images = np.stack([_image(path) for path, _ in batch])
        yield pixels.block(images, np.array([label for _, label in batch]), length)


def _listed(folder: Path, path: Path) -> Iterator[tuple[Path, int]]:
    """Yield images and labels of a list. It is text in spite of its name: folder, file, number, label, and more."""
    for number, line in files.lines(path):
        fields = line.decode("ascii", errors="replace").split()
        with files.row(path, number):
            if len(fields) < 4 or fields[3] not in ("0", "1"):
                raise ValueError(f"expected folder, file, number and label (0 or 1), got {line[:60]!r}")
            image = PurePath(fields[0], fields[1])
            if image.is_absolute() or ".." in image.parts:
                raise ValueError(f"{image} lies outside of {folder}")
        yield folder / image, int(fields[3])


def _image(path: Path) -> np.ndarray:
    """Read an 8-bit grey PNG and check every checksum: Pillow's decoder alone silently reads damaged pixels."""
    from PIL import Image

    body = path.read_bytes()
    try:
        with Image.open(BytesIO(body), formats=("PNG",)) as image:
            kind, size = image.mode, image.size
            if kind == "L" and size == (pixels.SIDE, pixels.SIDE):
                image.verify()
                with Image.open(BytesIO(body), formats=("PNG",)) as again:
                    return np.asarray(again)
    except (
        OSError,
        SyntaxError,
        ValueError,
        EOFError,
        struct.error,
        zlib.error,
        Image.DecompressionBombError,
    ) as error:
        raise ValueError(f"{path} is no whole PNG image ({error})") from error
    raise ValueError(f"{path}: expected 32 x 32 pixels in 8-bit grey, got {size[0]} x {size[1]} in mode {kind}")
