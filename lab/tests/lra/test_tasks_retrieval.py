"""Retrieval: the official rows and the compact files; bad rows are named."""

from pathlib import Path

import numpy as np
import pytest
from lab.tests.lra.samples import SHARED, needs_shared, write

from fastmax_lab.lra import tasks


def texts(split: tasks.Split) -> list[list[bytes]]:
    pairs = zip(split.tokens, split.lengths, strict=True)
    return [[bytes((t[:n] - 1).astype(np.uint8)) for t, n in zip(*pair, strict=True)] for pair in pairs]


def test_official_rows(tmp_path: Path) -> None:
    body = b'1.0\tA\tB\tone "quoted\ttwo\n0.0\tC\tD\tthree' + b"e" * 30 + b"\tfour\xff\n"
    for part in ("train", "eval", "test"):
        write(tmp_path / f"lra_release/tsv_data/new_aan_pairs.{part}.tsv", body)
    for name in ("train", "val", "test"):
        split = tasks.load("retrieval", name, tmp_path, length=16)
        assert split.tokens.shape == (2, 2, 16)
        assert texts(split) == [[b'one "quoted', b"two"], [b"threeeeeeeeeeeee", b"four\xff"]]
        assert split.labels.tolist() == [1, 0]


def test_compact_files(tmp_path: Path) -> None:
    write(tmp_path / "aan/docs.tsv.xz", b"A\tone\nB\ttwo\ttabs\nC\tthree\n")
    write(tmp_path / "aan/pairs.tsv.xz", b"train\t1\tA\tB\neval\t0\tC\tA\ntrain\t0\tB\tC\n")
    split = tasks.load("retrieval", "train", tmp_path)
    assert texts(split) == [[b"one", b"two\ttabs"], [b"two\ttabs", b"three"]]
    assert split.labels.tolist() == [1, 0]
    assert texts(tasks.load("retrieval", "val", tmp_path)) == [[b"three", b"one"]]
    with pytest.raises(ValueError, match="no example"):
        tasks.load("retrieval", "test", tmp_path)


@pytest.mark.parametrize(
    ("row", "message"),
    [(b"1.0\tA\tB\tone", "got 4 fields"), (b"yes\tA\tB\tone\ttwo", "label 0 or 1, got b'yes'")],
)
def test_a_malformed_official_row_is_named(row: bytes, message: str, tmp_path: Path) -> None:
    write(tmp_path / "tsv_data/new_aan_pairs.train.tsv", b"1.0\tA\tB\tone\ttwo\n" + row + b"\n")
    with pytest.raises(ValueError, match=f"train.tsv, line 2: .*{message}"):
        tasks.load("retrieval", "train", tmp_path)


@pytest.mark.parametrize(
    ("docs", "pairs", "message"),
    [
        (b"A one\n", b"train\t1\tA\tA\n", "docs.tsv.xz, line 1: expected an id"),
        (b"A\tone\n", b"train\t1\tA\n", "pairs.tsv.xz, line 1: expected split"),
        (b"A\tone\n", b"train\t1\tA\tB\n", "pairs.tsv.xz, line 1: B is not in docs.tsv.xz"),
        (b"A\tone\n", b"train\t2\tA\tA\n", "pairs.tsv.xz, line 1: expected the label"),
    ],
)
def test_malformed_compact_rows_are_named(docs: bytes, pairs: bytes, message: str, tmp_path: Path) -> None:
    write(tmp_path / "aan/docs.tsv.xz", docs)
    write(tmp_path / "aan/pairs.tsv.xz", pairs)
    with pytest.raises(ValueError, match=message):
        tasks.load("retrieval", "train", tmp_path)


def test_half_of_the_compact_files(tmp_path: Path) -> None:
    write(tmp_path / "aan/docs.tsv.xz", b"A\tone\n")
    with pytest.raises(FileNotFoundError, match=r"lacks aan/pairs.tsv.xz; there is aan/docs.tsv.xz"):
        tasks.load("retrieval", "train", tmp_path)


@needs_shared
def test_the_real_pairs(tmp_path: Path) -> None:
    (tmp_path / "aan").symlink_to(SHARED / "aan")
    split = tasks.load("retrieval", "test", tmp_path, length=64)
    assert np.bincount(split.labels).tolist() == [977, 977]
