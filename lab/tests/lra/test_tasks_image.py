"""Image: the binary archive, its folder and the compact file; the grey values; bad files."""

from pathlib import Path

import numpy as np
import pytest
from lab.tests.lra.samples import SHARED, needs_shared, tar, write

from fastmax_lab.data import archives
from fastmax_lab.lra import tasks
from fastmax_lab.lra.tasks import image

RECORDS = np.random.default_rng(0).integers(0, 256, (6, 4, 3073), np.uint8)
RECORDS[..., 0] %= 10
NAMES = [*(f"cifar-10-batches-bin/data_batch_{n}.bin" for n in range(1, 6)), "cifar-10-batches-bin/test_batch.bin"]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    members = {name: batch.tobytes() for name, batch in zip(NAMES, RECORDS, strict=True)}
    return tar(tmp_path / "cifar-10-binary.tar.gz", dict(reversed(members.items())))


def test_the_archive_and_its_folder(archive: Path, tmp_path: Path) -> None:
    train, val, test = (tasks.load("image", split, tmp_path) for split in tasks.SPLITS)
    expected = image.grey(RECORDS[..., 1:].reshape(24, 3, 32, 32)).reshape(24, 1024)
    assert np.array_equal(np.concatenate([train.tokens, val.tokens, test.tokens]), expected)
    assert np.array_equal(np.concatenate([train.labels, val.labels, test.labels]), RECORDS[..., 0].ravel())
    assert [len(split.labels) for split in (train, val, test)] == [18, 2, 4]
    assert (train.lengths == 1024).all()
    archives.unpack(archive, tmp_path / "other")
    assert np.array_equal(tasks.load("image", "train", tmp_path / "other").tokens, train.tokens)


def test_grey_values() -> None:
    """Worked by hand: floor(255.5 * (0.2989 R + 0.587 G + 0.114 B) / 255)."""
    rgb = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255], [10, 200, 90]], np.uint8)
    grey = image.grey(np.broadcast_to(rgb[:, :, None, None], (5, 3, 32, 32)))
    assert grey[:, 3, 4].tolist() == [76, 149, 29, 255, 130]


def test_shorter_sequences_are_means(tmp_path: Path) -> None:
    picture = RECORDS[0, 0, 1:1025]
    write(tmp_path / "cifar10_grey/test.bin.xz", b"\x07" + picture.tobytes())
    split = tasks.load("image", "test", tmp_path, length=256)
    squares = picture.reshape(32, 32).astype(float)
    assert split.tokens[0, 0] == round((squares[0, 0] + squares[0, 1] + squares[1, 0] + squares[1, 1]) / 4)
    assert split.tokens[0, 17] == np.rint(squares[2:4, 2:4].mean())
    assert np.array_equal(split.tokens[0], np.rint(squares.reshape(16, 2, 16, 2).mean((1, 3))).ravel())
    assert split.labels.tolist() == [7]


def test_damaged_files_are_named(archive: Path, tmp_path: Path) -> None:
    tar(archive, {NAMES[5]: RECORDS[5].tobytes()[:-1], NAMES[0]: b""})
    with pytest.raises(
        ValueError, match=r"test_batch.bin has 12,291 bytes, which is no whole number of records of 3073"
    ):
        tasks.load("image", "test", tmp_path)
    with pytest.raises(ValueError, match=r"lacks data_batch_2.bin, .*data_batch_5.bin: not whole"):
        tasks.load("image", "train", tmp_path)
    tar(archive, {NAMES[5]: bytes(3073) + b"\x0b" + bytes(3072)})
    with pytest.raises(ValueError, match=r"test_batch.bin, record 2: expected a label from 0 to 9, got 11"):
        tasks.load("image", "test", tmp_path)


def test_a_folder_that_is_not_whole(tmp_path: Path) -> None:
    write(tmp_path / NAMES[0], RECORDS[0].tobytes())
    with pytest.raises(FileNotFoundError, match=r"lacks data_batch_2.bin or "):
        tasks.load("image", "train", tmp_path)


@needs_shared
def test_the_real_images(tmp_path: Path) -> None:
    (tmp_path / "cifar10_grey").symlink_to(SHARED / "cifar10_grey")
    split = tasks.load("image", "test", tmp_path)
    assert np.bincount(split.labels).tolist() == [1000] * 10
    assert abs(split.tokens.mean() / 255 - 0.48) < 0.01
