"""Text: whether an IMDb review is positive, from its bytes."""

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np

from fastmax_lab.data import archives, files
from fastmax_lab.data.blocks import ExampleBlock, Source, batches, pack
from fastmax_lab.data.registry import DataSet, Remote
from fastmax_lab.lra import harnesses
from fastmax_lab.lra.tasks.interface import PaperColumn, Task

TASK = Task("text", length=4000, vocabulary=512, classes=2, pair=False, pads=True)
_MEMBER = re.compile(r"aclImdb/(train|test)/(neg|pos)/(\d+)_\d+\.txt")
_OFFICIAL = ("aclImdb", "aclImdb_v1.tar.gz")
_SKYFORMER = harnesses.skyformer(lr=1e-4, warmup=80, batch=32)
PRESETS = {
    "skyformer": _SKYFORMER,
    "nystrom": harnesses.nystrom(_SKYFORMER, warmup=8000, steps=20_000),
    "google": harnesses.google(
        harnesses.google_bytes(4, 256, 4, 1024), harnesses.google_rsqrt(warmup=8000, steps=20_000), length=1000
    ),
}
PAPER = PaperColumn(
    accuracy={
        "vanilla": 61.95,
        "informer": 63.60,
        "reformer": 64.75,
        "linear": 65.90,
        "performer": 64.39,
        "fastmax2": 64.30,
        "fastmax1": 63.25,
    },
    steps_per_second={"vanilla": 1.8, "fastmax2": 6.1, "fastmax1": 26.7},
)
DATA = DataSet(
    "text",
    "IMDb reviews, bytes",
    ((*_OFFICIAL, "imdb/train.tsv.xz"),),
    (
        Remote(
            "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
            "aclImdb_v1.tar.gz",
            84_125_825,
            "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
        ),
    ),
)


def source(data: Path, split: str, length: int, seed: int) -> Source:  # noqa: ARG001  (one signature for all tasks)
    """Return the source of a split. Validation is the test set, as in LRA: the archive has no third part."""
    part = "train" if split == "train" else "test"
    compact = f"imdb/{part}.tsv.xz"
    found = files.find(data, [*_OFFICIAL, compact])
    if not found:
        raise files.missing(TASK.name, data, [*_OFFICIAL, compact])
    path = next(iter(found.values()))
    if path.name.endswith(".xz"):
        return Source((path,), {}, lambda: _blocks(_compact(path), length))
    parts = files.inside(TASK.name, path, [f"{part}/neg", f"{part}/pos"]) if path.is_dir() else (path,)
    return Source(parts, {}, lambda: _blocks(_official(path, part), length))


def _blocks(reviews: Iterator[tuple[int, bytes]], length: int) -> Iterator[ExampleBlock]:
    for batch in batches(reviews):
        tokens, lengths = pack([text for _, text in batch], length)
        yield ExampleBlock(tokens, lengths, np.array([label for label, _ in batch], np.int64))


def _compact(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield label and review of each line: label, stars, id, review."""
    for number, line in files.lines(path):
        fields = line.split(b"\t", 3)
        with files.row(path, number):
            if len(fields) != 4 or fields[0] not in (b"0", b"1"):
                raise ValueError(f"expected label (0 or 1), stars, id and text with tabs between, got {line[:60]!r}")
        yield int(fields[0]), fields[3]


def _official(path: Path, part: str) -> Iterator[tuple[int, bytes]]:
    """Return negative and positive examples in turn, in the order of their ids: every even prefix is balanced."""
    reviews: dict[str, list[tuple[int, bytes]]] = {"neg": [], "pos": []}
    for name, text in archives.members(path, lambda name: name.startswith(f"aclImdb/{part}/")):
        match = _MEMBER.fullmatch(name)
        if match:
            reviews[match[2]].append((int(match[3]), text))
    negative, positive = (sorted(reviews[kind]) for kind in ("neg", "pos"))
    if not positive or len(positive) != len(negative):
        raise ValueError(
            f"{path} has {len(positive)} positive and {len(negative)} negative reviews for {part}: not whole"
        )
    yield from chain.from_iterable(((0, n), (1, p)) for (_, n), (_, p) in zip(negative, positive, strict=True))
