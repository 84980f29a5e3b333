"""Properties of all tasks: their shapes, what they refuse, and what they report as missing."""

from pathlib import Path

import numpy as np
import pytest

from fastmax_lab.lra import tasks


def test_the_official_shapes() -> None:
    shapes = {t.name: (t.length, t.vocabulary, t.classes, t.pair, t.pads) for t in map(tasks.task, tasks.names())}
    assert shapes == {
        "listops": (2000, 32, 10, False, True),
        "text": (4000, 512, 2, False, True),
        "retrieval": (4000, 512, 2, True, True),
        "image": (1024, 256, 10, False, False),
        "pathfinder": (1024, 512, 2, False, False),
    }


@pytest.mark.parametrize(("name", "length"), [("text", 100), ("listops", 64), ("image", 256), ("pathfinder", 16)])
def test_a_shorter_length(name: str, length: int) -> None:
    assert tasks.task(name, length=length).length == length
    assert tasks.task(name, length=length).classes == tasks.task(name).classes


@pytest.mark.parametrize(
    ("name", "length", "message"),
    [
        ("sudoku", None, "one of listops, text, retrieval, image, pathfinder, got 'sudoku'"),
        ("text", 4001, "from 16 to 4000 for text, got 4001"),
        ("listops", 4, "from 16 to 2000 for listops, got 4"),
        ("image", 1000, "one of 1024, 256, 64, 16, 4 for image, got 1000"),
    ],
)
def test_wrong_tasks_are_refused(name: str, length: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tasks.task(name, length=length)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "dev"}, "one of train, val, test, got 'dev'"),
        ({"limit": 0}, "at least 1, got 0"),
        ({"seed": -1}, "not be negative, got -1"),
    ],
)
def test_wrong_requests_are_refused(options: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        tasks.load(**{"name": "listops", "split": "train", "data": tmp_path, **options})


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("text", "aclImdb_v1.tar.gz or imdb/train.tsv.xz"),
        ("image", "cifar-10-binary.tar.gz or cifar10_grey/train.bin.xz"),
        ("retrieval", "tsv_data/new_aan_pairs.train.tsv or aan/docs.tsv.xz with aan/pairs.tsv.xz"),
    ],
)
def test_missing_data_is_named(name: str, wanted: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=rf"{wanted}\. `fastmax-lab data get {name}`"):
        tasks.load(name, "train", tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["listops", "pathfinder"])
def test_generated_data(name: str, tmp_path: Path) -> None:
    """Memory-mapped, reproducible, different for another seed or split; a smaller limit is a prefix."""
    options = {"length": 64, "limit": 40}
    train = tasks.load(name, "train", tmp_path / "a", **options)
    assert train.tokens.shape == (40, 64)
    assert train.tokens.dtype.kind == "u"
    assert train.labels.dtype == np.int64
    assert all(isinstance(column, np.memmap) for column in (train.tokens, train.lengths, train.labels))
    assert int(train.tokens.max()) < tasks.task(name).vocabulary
    assert np.array_equal(tasks.load(name, "train", tmp_path / "b", **options).tokens, train.tokens)
    fewer = tasks.load(name, "train", tmp_path / "b", length=64, limit=7)
    assert np.array_equal(fewer.tokens, train.tokens[:7])
    assert np.array_equal(fewer.labels, train.labels[:7])
    assert not np.array_equal(tasks.load(name, "train", tmp_path / "a", **options, seed=1).tokens, train.tokens)
    assert not np.array_equal(tasks.load(name, "val", tmp_path / "a", **options).tokens, train.tokens)
