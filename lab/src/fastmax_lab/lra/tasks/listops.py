"""ListOps: the value of a nested expression of minima, maxima, medians and sums of digits."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fastmax_lab.data import files
from fastmax_lab.data.blocks import ExampleBlock, Source, batches
from fastmax_lab.data.registry import BY_HAND, DataSet
from fastmax_lab.lra import harnesses
from fastmax_lab.lra.generators import listops as listops_trees
from fastmax_lab.lra.generators.listops import CLOSE, FIRST_OPERATOR, OPERATORS
from fastmax_lab.lra.tasks.interface import PaperColumn, Task

TASK = Task("listops", length=2000, vocabulary=32, classes=10, pair=False, pads=True)
SIZES = {"train": 96_000, "val": 2_000, "test": 2_000}

_SKYFORMER = harnesses.skyformer(lr=1e-4, warmup=1000, batch=32, vocabulary=32)
PRESETS = {
    "skyformer": _SKYFORMER,
    "nystrom": harnesses.nystrom(_SKYFORMER, steps=5_000),
    "google": harnesses.google(
        harnesses.google_bytes(4, 512, 8, 1024), harnesses.google_rsqrt(warmup=1000, steps=5_000)
    ),
}
PAPER = PaperColumn(
    accuracy={
        "vanilla": 38.37,
        "informer": 36.95,
        "reformer": 37.00,
        "linear": 16.13,
        "performer": 37.80,
        "fastmax2": 37.40,
        "fastmax1": 37.20,
    },
    steps_per_second={"vanilla": 6.4, "fastmax2": 11.6, "fastmax1": 47.4},
)
DATA = DataSet(
    "listops",
    "nested lists of digits",
    (("listops-1000",),),
    generated=True,
    hint=f"ListOps is generated on first use: nothing to fetch. {BY_HAND}",
)

_WRONG = 255
_TABLE = bytes(
    c - 47 if 48 <= c <= 57 else CLOSE if c == ord("]") else c if FIRST_OPERATOR <= c < CLOSE else _WRONG
    for c in range(256)
)


def source(data: Path, split: str, length: int, seed: int) -> Source:
    official = {name: f"listops-1000/basic_{name}.tsv" for name in SIZES}
    found = files.find(data, official.values())
    if found:
        path = files.need(TASK.name, data, official[split], found)
        return Source((path,), {}, lambda: _official(path, length))
    return Source((), {"seed": seed, "recipe": 1}, lambda: _generated(seed, split, length), SIZES[split])


def tokenize(expression: bytes) -> bytes:
    """Return the tokens as bytes, without the parentheses, which repeat what the brackets say."""
    text = expression
    for number, name in enumerate(OPERATORS, FIRST_OPERATOR):
        text = text.replace(f"[{name}".encode(), bytes([number]))
    tokens = text.translate(_TABLE, b"() ")
    words = expression.count(b" ") + 1 - expression.count(b"(") - expression.count(b")")
    if _WRONG in tokens or words != len(tokens):
        raise ValueError(f"expected digits, [MIN, [MAX, [MED, [SM, ] and parentheses, got {expression[:60]!r}")
    return tokens


def _generated(seed: int, split: str, length: int) -> Iterator[ExampleBlock]:
    """Yield generated blocks. Lengths range from a quarter of the longest to the longest, as officially."""
    rng = np.random.default_rng([seed, list(SIZES).index(split)])
    for batch in listops_trees.generate(rng, length // 4, length):
        yield ExampleBlock(*batch)


def _official(path: Path, length: int) -> Iterator[ExampleBlock]:
    """Yield the official blocks without expressions longer than `length`: a cut expression has no value."""
    for rows in batches(_rows(path, length)):
        lengths = np.array([len(tokens) for tokens, _ in rows], np.int32)
        tokens = np.zeros((len(rows), length), np.uint8)
        tokens[np.arange(length) < lengths[:, None]] = np.frombuffer(b"".join(t for t, _ in rows), np.uint8)
        yield ExampleBlock(tokens, lengths, np.array([label for _, label in rows], np.int64))


def _rows(path: Path, length: int) -> Iterator[tuple[bytes, int]]:
    for number, line in files.lines(path):
        if number == 1 and line == b"Source\tTarget":
            continue
        with files.row(path, number):
            expression, _, label = line.partition(b"\t")
            if len(label) != 1 or not label.isdigit():
                raise ValueError(f"expected an expression, a tab and a digit, got {line[-60:]!r}")
            tokens = tokenize(expression.strip())
        if len(tokens) <= length:
            yield tokens, int(label)
