"""MNIST's idx files and Tiny Shakespeare."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from lab.tests.lra.samples import SHARED, needs_shared, write

from fastmax_lab.data import mnist, shakespeare

IMAGES = np.random.default_rng(0).integers(0, 256, (3, 28, 28), np.uint8)


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.mark.parametrize(("folder", "suffix"), [("mnist", ".gz"), ("MNIST/raw", ""), (".", ".gz")])
def test_mnist(folder: str, suffix: str, tmp_path: Path) -> None:
    for name, array in (("images-idx3", IMAGES), ("labels-idx1", np.array([7, 2, 1], np.uint8))):
        body = gzip.compress(idx(array)) if suffix else idx(array)
        write(tmp_path / folder / f"t10k-{name}-ubyte{suffix}", body)
    images, labels = mnist.load("test", tmp_path)
    assert np.array_equal(images, IMAGES)
    assert labels.tolist() == [7, 2, 1]
    with pytest.raises(FileNotFoundError, match=r"mnist/train-images-idx3-ubyte.gz. `fastmax-lab data get mnist`"):
        mnist.load("train", tmp_path)
    with pytest.raises(ValueError, match="train or test, got 'val'"):
        mnist.load("val", tmp_path)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (gzip.compress(idx(IMAGES))[:-20], "damaged or cut short"),
        (b"no gzip", "damaged or cut short"),
        (gzip.compress(idx(IMAGES)[:-1]), "expected 3 x 28 x 28 values, got 2351"),
        (gzip.compress(idx(IMAGES[0])), "expected an idx file of bytes with 3 dimensions"),
        (gzip.compress(idx(IMAGES[:2])), "2 MNIST images but 3 labels"),
    ],
)
def test_a_bad_file_is_named(body: bytes, message: str, tmp_path: Path) -> None:
    write(tmp_path / "mnist/train-images-idx3-ubyte.gz", body)
    write(tmp_path / "mnist/train-labels-idx1-ubyte.gz", gzip.compress(idx(np.zeros(3, np.uint8))))
    with pytest.raises(ValueError, match=message):
        mnist.load("train", tmp_path)


def test_shakespeare(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"tinyshakespeare.txt .*`fastmax-lab data get tinyshakespeare`"):
        shakespeare.load("train", tmp_path)
    text = b"To be, or not to be:"
    write(tmp_path / "tinyshakespeare.txt", text)
    (train, alphabet), (val, same) = (shakespeare.load(split, tmp_path) for split in ("train", "val"))
    assert alphabet == same == bytes(sorted(set(text)))
    assert len(train) == 18
    assert bytes(alphabet[token] for token in [*train, *val]) == text
    with pytest.raises(ValueError, match="train or val, got 'test'"):
        shakespeare.load("test", tmp_path)


@needs_shared
def test_the_real_files() -> None:
    images, labels = mnist.load("test", SHARED)
    assert images.shape == (10_000, 28, 28)
    assert labels[:5].tolist() == [7, 2, 1, 0, 4]
    train, alphabet = shakespeare.load("train", SHARED)
    assert len(alphabet) == 65
    assert len(train) == 1_003_854
