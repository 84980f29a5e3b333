"""Text: the archive, the folder it unpacks to and the compact file give the same arrays; bad ones are named."""

from pathlib import Path

import numpy as np
import pytest
from lab.tests.lra.samples import SHARED, needs_shared, tar, write

from fastmax_lab.data import archives
from fastmax_lab.lra import tasks

REVIEWS = {("neg", 0): b"awful", ("pos", 0): b"gr\xc3\xa9at \x00\xff", ("neg", 10): b"x" * 30, ("pos", 2): b"fine\ttoo"}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    train = {f"aclImdb/train/{kind}/{n}_7.txt": text for (kind, n), text in reversed(REVIEWS.items())}
    members = train | {name.replace("train", "test"): text[::-1] for name, text in train.items()}
    members |= {
        "aclImdb/train/unsup/0_0.txt": b"no label",
        "aclImdb/README": b"read me",
        "aclImdb/train/urls_pos.txt": b"",
    }
    return tar(tmp_path / "aclImdb_v1.tar.gz", members)


def test_the_archive_and_its_folder(archive: Path, tmp_path: Path) -> None:
    split = tasks.load("text", "train", tmp_path, length=20)
    texts = [bytes((t[:n] - 1).astype(np.uint8)) for t, n in zip(split.tokens, split.lengths, strict=True)]
    assert texts == [b"awful", b"gr\xc3\xa9at \x00\xff", b"x" * 20, b"fine\ttoo"]
    assert split.labels.tolist() == [0, 1, 0, 1]
    assert split.tokens[1].tolist() == [104, 115, 196, 170, 98, 117, 33, 1, 256, *[0] * 11]
    other = tmp_path / "other"
    archives.unpack(archive, other)
    again = tasks.load("text", "train", other, length=20)
    assert np.array_equal(again.tokens, split.tokens)
    assert np.array_equal(again.labels, split.labels)


def test_validation_is_the_test_set(archive: Path, tmp_path: Path) -> None:
    assert archive.exists()
    train, val, test = (tasks.load("text", split, tmp_path).tokens for split in tasks.SPLITS)
    assert np.array_equal(val, test)
    assert not np.array_equal(val, train)


def test_the_compact_file(tmp_path: Path) -> None:
    write(tmp_path / "imdb/train.tsv.xz", "0\t1\t17\tbad\n1\t9\t18\tgood\tindeed\u2028!\n".encode())
    split = tasks.load("text", "train", tmp_path, length=50)
    assert split.lengths.tolist() == [3, len("good\tindeed\u2028!".encode())]
    assert split.labels.tolist() == [0, 1]


@pytest.mark.parametrize("row", ["2\t1\t17\tbad", "1\t17\tshort", ""])
def test_a_malformed_row_is_named(row: str, tmp_path: Path) -> None:
    write(tmp_path / "imdb/test.tsv.xz", f"0\t1\t1\tfine\n{row}\n".encode())
    with pytest.raises(ValueError, match=r"test.tsv.xz, line 2: expected label"):
        tasks.load("text", "test", tmp_path)


def test_damaged_files_are_named(archive: Path, tmp_path: Path) -> None:
    body = archive.read_bytes()
    archive.write_bytes(body[: len(body) // 2])
    with pytest.raises(ValueError, match=r"aclImdb_v1.tar.gz is damaged"):
        tasks.load("text", "train", tmp_path)
    tar(archive, {"aclImdb/train/pos/1_9.txt": b"alone"})
    with pytest.raises(ValueError, match="1 positive and 0 negative reviews for train"):
        tasks.load("text", "train", tmp_path)
    archive.unlink()
    compact = write(tmp_path / "imdb/train.tsv.xz", b"0\t1\t1\tfine\n" * 1000)
    compact.write_bytes(compact.read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"train.tsv.xz is damaged"):
        tasks.load("text", "train", tmp_path)
    assert not list((tmp_path / "arrays").iterdir())


def test_a_folder_that_is_not_whole(tmp_path: Path) -> None:
    write(tmp_path / "aclImdb/train/pos/1_9.txt", b"alone")
    with pytest.raises(FileNotFoundError, match="lacks train/neg"):
        tasks.load("text", "train", tmp_path)


@needs_shared
def test_the_real_reviews(tmp_path: Path) -> None:
    (tmp_path / "imdb").symlink_to(SHARED / "imdb")
    split = tasks.load("text", "train", tmp_path, length=100, limit=1000)
    assert np.bincount(split.labels).tolist() == [500, 500]
    assert (split.lengths == 100).mean() > 0.9
