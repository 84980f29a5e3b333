"""Retrieval: whether one paper of the ACL Anthology cites another, from the bytes of both."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fastmax_lab.data import files
from fastmax_lab.data.blocks import ExampleBlock, Source, batches, pack
from fastmax_lab.data.registry import BY_HAND, DataSet
from fastmax_lab.lra import harnesses
from fastmax_lab.lra.tasks.interface import PaperColumn, Task

TASK = Task("retrieval", length=4000, vocabulary=512, classes=2, pair=True, pads=True)
_PARTS = {"train": "train", "val": "eval", "test": "test"}
_LABELS = {b"0": 0, b"0.0": 0, b"1": 1, b"1.0": 1}
_DOCS, _PAIRS = "aan/docs.tsv.xz", "aan/pairs.tsv.xz"

_SKYFORMER = harnesses.skyformer(lr=2e-4, warmup=800, batch=16)
PRESETS = {
    "skyformer": _SKYFORMER,
    "nystrom": harnesses.nystrom(_SKYFORMER, lr=1e-4, batch=32, steps=30_000),
    "google": harnesses.google(
        harnesses.google_bytes(4, 128, 4, 512), harnesses.google_rsqrt(warmup=8000, steps=5_000)
    ),
}
PAPER = PaperColumn(
    accuracy={
        "vanilla": 80.69,
        "informer": 75.25,
        "reformer": 78.50,
        "linear": 53.09,
        "performer": 79.05,
        "fastmax2": 78.11,
        "fastmax1": 78.21,
    },
    steps_per_second={"vanilla": 1.7, "fastmax2": 6.9, "fastmax1": 24.7},
)
DATA = DataSet("retrieval", "pairs of ACL papers, bytes", (("tsv_data/new_aan_pairs.train.tsv", _PAIRS),), hint=BY_HAND)

Pair = tuple[int, bytes, bytes]


def source(data: Path, split: str, length: int, seed: int) -> Source:  # noqa: ARG001  (one signature for all tasks)
    official = {part: f"tsv_data/new_aan_pairs.{part}.tsv" for part in _PARTS.values()}
    found = files.find(data, official.values())
    part = _PARTS[split]
    if found:
        path = files.need(TASK.name, data, official[part], found)
        return Source((path,), {}, lambda: _blocks(_official(path), length))
    found = files.find(data, [_DOCS, _PAIRS])
    if not found:
        raise files.missing(TASK.name, data, [official[part], f"{_DOCS} with {_PAIRS}"])
    docs, pairs = (files.need(TASK.name, data, name, found) for name in (_DOCS, _PAIRS))
    return Source((docs, pairs), {}, lambda: _blocks(_compact(docs, pairs, part, length), length))


def _blocks(rows: Iterator[Pair], length: int) -> Iterator[ExampleBlock]:
    for batch in batches(rows):
        tokens, lengths = pack([text for _, first, second in batch for text in (first, second)], length)
        labels = np.array([label for label, _, _ in batch], np.int64)
        yield ExampleBlock(tokens.reshape(-1, 2, length), lengths.reshape(-1, 2), labels)


def _official(path: Path) -> Iterator[Pair]:
    """Yield the pairs of the official file, a line each: label, two ids, two texts; no header, no quoting."""
    for number, line in files.lines(path):
        fields = line.split(b"\t")
        with files.row(path, number):
            if len(fields) != 5:
                raise ValueError(f"expected label, id, id, text, text with tabs between, got {len(fields)} fields")
            yield _label(fields[0]), fields[3], fields[4]


def _compact(docs: Path, pairs: Path, part: str, length: int) -> Iterator[Pair]:
    """Pack the examples: `docs` has the texts by id; a line of `pairs` is split, label, citing id, other id."""
    texts = {}
    for number, line in files.lines(docs):
        with files.row(docs, number):
            name, tab, text = line.partition(b"\t")
            if not tab:
                raise ValueError(f"expected an id, a tab and a text, got {line[:60]!r}")
            texts[name] = text[:length]
    for number, line in files.lines(pairs):
        fields = line.split(b"\t")
        with files.row(pairs, number):
            if len(fields) != 4:
                raise ValueError(f"expected split, label, id, id with tabs between, got {line[:60]!r}")
            unknown = [name.decode(errors="replace") for name in fields[2:] if name not in texts]
            if unknown:
                raise ValueError(f"{', '.join(unknown)} is not in {docs.name}")
            if fields[0] == part.encode():
                yield _label(fields[1]), texts[fields[2]], texts[fields[3]]


def _label(text: bytes) -> int:
    if text not in _LABELS:
        raise ValueError(f"expected the label 0 or 1, got {text[:60]!r}")
    return _LABELS[text]
