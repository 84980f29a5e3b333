"""The cache of token arrays: built once, keyed by all that shapes them, whole or absent."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from lab.tests.lra.samples import largest_file, write

from fastmax_lab.data import cache
from fastmax_lab.data.blocks import ExampleBlock, Source, pack
from fastmax_lab.lra import tasks


def blocks(count: int, size: int = 10) -> Iterator[ExampleBlock]:
    for start in range(0, count, size):
        numbers = np.arange(start, min(count, start + size))
        yield ExampleBlock(numbers[:, None].astype(np.uint8) + np.zeros(6, np.uint8), numbers.astype(np.int32), numbers)


def load(folder: Path, count: int, limit: int | None = None, **key: int) -> ExampleBlock:
    return cache.load("x", {"task": "x", **key}, Source((), {}, lambda: blocks(count)), folder, limit)


def folders(data: Path) -> list[Path]:
    return sorted((data / "arrays").iterdir())


def test_blocks_become_one_memory_mapped_array(tmp_path: Path) -> None:
    arrays = load(tmp_path, 25)
    assert arrays.tokens.shape == (25, 6)
    assert arrays.labels.tolist() == list(range(25))
    assert isinstance(arrays.tokens, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        arrays.tokens[0] = 1


def test_the_arrays_are_built_once(tmp_path: Path) -> None:
    load(tmp_path, 25)
    assert load(tmp_path, 0).labels.tolist() == list(range(25)), "the source is not asked again"
    assert load(tmp_path, 0, limit=3).labels.tolist() == [0, 1, 2], "a part is taken of the whole"
    assert len(folders(tmp_path)) == 1


def test_a_limit_reads_no_further_than_it_must(tmp_path: Path) -> None:
    def endless() -> Iterator[ExampleBlock]:
        yield from blocks(20)
        raise AssertionError("read on")

    arrays = cache.load("x", {}, Source((), {}, endless), tmp_path, 12)
    assert arrays.labels.tolist() == list(range(12))
    counted = cache.load("x", {"other": 1}, Source((), {}, endless, count=15), tmp_path, None)
    assert counted.labels.tolist() == list(range(15))


def test_everything_that_shapes_the_arrays_is_in_the_key(tmp_path: Path) -> None:
    file = write(tmp_path / "imdb/train.tsv.xz", b"0\t1\t1\tone\n1\t1\t2\ttwo\n")
    seen = [tasks.load("text", "train", tmp_path).tokens.shape]
    seen.append(tasks.load("text", "train", tmp_path, length=20).tokens.shape)
    seen.append(tasks.load("text", "train", tmp_path, length=20, limit=1).tokens.shape)
    assert seen == [(2, 4000), (2, 20), (1, 20)]
    write(file, b"0\t1\t1\tnew\n1\t1\t2\ttwo\n1\t1\t3\tthree\n")
    os.utime(file, ns=(1, 1))
    assert tasks.load("text", "train", tmp_path, length=20).tokens.shape == (3, 20)
    with patch.object(cache, "VERSION", 2):
        tasks.load("text", "train", tmp_path, length=20)
    assert len(folders(tmp_path)) == 4


def test_a_source_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> Iterator[ExampleBlock]:
        yield from blocks(10)
        raise ValueError("line 11")

    with pytest.raises(ValueError, match="line 11"):
        cache.load("x", {}, Source((), {}, broken), tmp_path, None)
    assert folders(tmp_path) == []
    with pytest.raises(ValueError, match="no example"):
        load(tmp_path, 0)
    assert folders(tmp_path) == []


def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    with largest_file(500), pytest.raises(OSError, match=rf"do not go into {re.escape(str(tmp_path))}") as caught:
        load(tmp_path, 200)
    assert caught.value.errno is not None
    assert folders(tmp_path) == []
    assert len(load(tmp_path, 200).labels) == 200


def test_another_process_may_be_faster(tmp_path: Path) -> None:
    def slow() -> Iterator[ExampleBlock]:
        load(tmp_path, 30)
        yield from blocks(30)

    arrays = cache.load("x", {"task": "x"}, Source((), {}, slow), tmp_path, None)
    assert arrays.labels.tolist() == list(range(30))
    assert len(folders(tmp_path)) == 1


def test_drafts_of_killed_processes_are_swept_away(tmp_path: Path) -> None:
    old, new = tmp_path / "arrays/.draft-old", tmp_path / "arrays/.draft-new"
    old.mkdir(parents=True)
    new.mkdir()
    os.utime(old, (1, 1))
    load(tmp_path, 5)
    assert not old.exists()
    assert new.exists(), "it may be in use"


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    with (
        patch("os.access", lambda *_: False),
        patch.object(cache, "default_folder", lambda: tmp_path / "home"),
    ):
        load(tmp_path / "data", 5)
    assert not list((tmp_path / "data").iterdir())
    assert len(folders(tmp_path / "home")) == 1


def test_pack() -> None:
    tokens, lengths = pack([b"ab", b"", b"\x00\xffxyz"], 4)
    assert tokens.tolist() == [[98, 99, 0, 0], [0, 0, 0, 0], [1, 256, 121, 122]]
    assert lengths.tolist() == [2, 0, 4]
