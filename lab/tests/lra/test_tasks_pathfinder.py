"""Pathfinder: the geometry of the contours, what is drawn, the labels, and the official files."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from lab.tests.lra.samples import chunk, png, write

from fastmax_lab.lra import tasks
from fastmax_lab.lra.generators import pathfinder_images, pathfinder_scenes
from fastmax_lab.lra.generators.pathfinder_scenes import CONTOUR, DASH, MARGIN, WINDOW, Dashes
from fastmax_lab.lra.tasks import pathfinder

Scenes = tuple[Dashes, Dashes]


@pytest.fixture(scope="module")
def scenes() -> Scenes:
    return pathfinder_scenes.scenes(np.random.default_rng(0), 1024)


def test_contours_are_dashed_and_bend_smoothly(scenes: Scenes) -> None:
    """Every dash starts two margins behind the end of the one before: one straight on, one in its own direction."""
    for dashes in scenes:
        whole = ~np.isnan(dashes.tails).any(2)
        tails, directions = dashes.tails[whole], dashes.directions[whole]
        assert len(tails) > 100
        assert np.allclose(np.abs(directions), 1, atol=1e-5)
        heads = tails + DASH * directions
        expected = heads[:, :-1] + MARGIN * (directions[:, :-1] + directions[:, 1:])
        assert np.allclose(tails[:, 1:], expected, atol=1e-3)
        turns = np.angle(directions[:, 1:] / directions[:, :-1])
        assert np.abs(turns).max() < np.pi / 2
        assert abs(turns.mean()) < 0.1
        inside = np.stack([heads.real, heads.imag, tails.real, tails.imag])
        assert inside[:, :, 1:].min() >= MARGIN
        assert inside[:, :, 1:].max() <= WINDOW - MARGIN


def test_turns_before_anything_is_in_the_way() -> None:
    """Density 2/pi cos²(a) on (-pi/2, pi/2): its variance is pi²/12 - 1/2, and its share beyond pi/4 is 1/2 - 1/pi."""
    turns = np.angle(pathfinder_scenes._EQUALLY_LIKELY_TURNS)
    assert abs(turns.mean()) < 1e-5
    assert turns.var() == pytest.approx(np.pi**2 / 12 - 0.5, rel=1e-3)
    assert (np.abs(turns) > np.pi / 4).mean() == pytest.approx(0.5 - 1 / np.pi, abs=1e-3)


def test_contours_do_not_touch(scenes: Scenes) -> None:
    """Measure exact distances. The generator looks at pixels, which may differ by half a diagonal of a pixel."""
    contours, distractors = scenes
    along = np.linspace(0, DASH, 9)
    long = contours.at(along).reshape(len(contours.tails), 2, -1)
    others = distractors.at(along).reshape(len(long), -1)
    least = 2 - np.sqrt(0.5) - 1e-3
    for (first, second), rest in zip(long, others, strict=True):
        assert np.abs(first[:, None] - second).min() >= least
        both = np.concatenate([first, second])
        assert not (np.abs(both[:, None] - rest) < least).any()
        snakes = rest.reshape(5, -1)
        assert not any((np.abs(snakes[i][:, None] - snakes[j]) < least).any() for i in range(5) for j in range(i))


def test_origins_are_where_the_recipe_wants_them(scenes: Scenes) -> None:
    origins = scenes[0].tails[:, :, 0]
    assert np.abs(np.abs(origins[:, 0] - origins[:, 1]) - 7).max() < 0.5
    middle = np.abs(origins - (16 + 16j)).min(1)
    assert middle.max() < np.hypot(2, 2) + 1e-3


def test_distractors(scenes: Scenes) -> None:
    there = ~np.isnan(scenes[1].tails)
    assert there.shape[1:] == (5, 4)
    assert (there.all(2) == there.any(2)).all(), "whole or absent"
    assert 1 < there.all(2).sum(1).mean() <= 5


def test_the_dots_say_the_label(scenes: Scenes) -> None:
    """Dots are full-bright discs at the origin of one contour and at the end of the same, or of the other."""
    contours, distractors = scenes
    count = len(contours.tails)
    labels = np.arange(count) % 2
    images = pathfinder_images.draw(contours, distractors, labels)
    flipped = pathfinder_images.draw(contours, distractors, 1 - labels)
    heads = contours.at(DASH)[:, :, -1, 0]
    for row, label in enumerate(labels):
        end = heads[row, 0 if label else 1]
        for dot in (contours.tails[row, 0, 0], end):
            assert images[row, int(dot.imag), int(dot.real)] == 255
        other = heads[row, 1 if label else 0]
        changed = np.argwhere(images[row] != flipped[row]) + 0.5
        nearest = np.abs((changed[:, 1] + 1j * changed[:, 0])[:, None] - np.array([end, other])).min(1)
        assert nearest.max() < 3, "only the dot at the end has moved"


def test_what_is_drawn(scenes: Scenes) -> None:
    contours, distractors = scenes
    images = pathfinder_images.draw(contours, distractors, np.zeros(len(contours.tails), int))
    assert images.dtype == np.uint8
    assert (images.max((1, 2)) == 255).all()
    assert 0.5 < (images == 0).mean() < 0.9
    middles = contours.at(DASH / 2)[..., 0, None, None]
    x, y = middles.real.astype(int) + np.arange(-1, 2), middles.imag.astype(int) + np.arange(-1, 2)[:, None]
    brightest = images[np.arange(len(images))[:, None, None, None, None], y, x].max((3, 4))
    # A line passes within half a pixel of the centre of some pixel, of which it then covers at least a quarter.
    assert brightest.min() >= int(255 * 0.25 * pathfinder_images.TARGET_CONTRAST), "every dash is seen"


def test_half_of_the_images_are_connected(tmp_path: Path) -> None:
    split = tasks.load("pathfinder", "train", tmp_path, limit=250)
    assert split.tokens.shape == (250, 1024)
    assert (split.lengths == 1024).all()
    for even in (2, 10, 100, 250):
        assert split.labels[:even].sum() == even // 2
    assert len(np.unique(split.labels[::2])) == 2, "the labels do not alternate"
    assert len(np.unique(split.tokens, axis=0)) == 250


def test_the_official_sizes() -> None:
    assert tasks.pathfinder.SIZES == {"train": 160_000, "val": 20_000, "test": 20_000}
    assert CONTOUR == 14


def official(folder: Path) -> np.ndarray:
    images = np.random.default_rng(0).integers(0, 256, (20, 32, 32), np.uint8)
    base = folder / "lra_release/lra_release/pathfinder32/curv_contour_length_14"
    for number, image in enumerate(images):
        name = f"imgs/{number // 2}/sample_{number % 2}.png"
        write(base / name, png(image, "04321"))
    for number in range(10):
        rows = [f"imgs/{number} sample_{k}.png {k} {(2 * number + k) % 3 % 2} 1.0 14 4 2\n" for k in (0, 1)]
        write(base / f"metadata/{number}.npy", "".join(rows).encode())
    return images


def test_official_files(tmp_path: Path) -> None:
    images = official(tmp_path)
    splits = [tasks.load("pathfinder", split, tmp_path) for split in tasks.SPLITS]
    assert [len(split.labels) for split in splits] == [16, 2, 2]
    assert np.array_equal(np.concatenate([split.tokens for split in splits]), images.reshape(20, 1024))
    assert np.concatenate([split.labels for split in splits]).tolist() == [n % 3 % 2 for n in range(20)]


def test_bad_official_files_are_named(tmp_path: Path) -> None:
    official(tmp_path)
    base = tmp_path / "lra_release/lra_release/pathfinder32/curv_contour_length_14"
    good = (base / "imgs/0/sample_1.png").read_bytes()
    write(base / "imgs/0/sample_1.png", b"")
    with pytest.raises(ValueError, match=r"imgs/0/sample_1.png is no whole PNG image"):
        tasks.load("pathfinder", "train", tmp_path)
    write(base / "imgs/0/sample_1.png", png(np.zeros((32, 31), np.uint8), "0"))
    with pytest.raises(ValueError, match=r"sample_1.png: expected 32 x 32 pixels in 8-bit grey, got 31 x 32 in mode L"):
        tasks.load("pathfinder", "train", tmp_path)
    (base / "imgs/0/sample_1.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"sample_1.png"):
        tasks.load("pathfinder", "train", tmp_path)
    write(base / "imgs/0/sample_1.png", good)
    for row in ("imgs/0 sample_0.png 1", "imgs/0 sample_0.png 1 7", "../../imgs sample_0.png 1 1"):
        write(base / "metadata/3.npy", f"imgs/0 sample_0.png 1 1\n{row}\n".encode())
        with pytest.raises(ValueError, match=r"metadata/3.npy, line 2: (expected folder|\.\./\.\./imgs)"):
            tasks.load("pathfinder", "train", tmp_path)
    for path in (base / "metadata").iterdir():
        path.unlink()
    with pytest.raises(FileNotFoundError, match="metadata"):
        tasks.load("pathfinder", "train", tmp_path)


IMAGE = np.random.default_rng(0).integers(0, 256, (32, 32), np.uint8)


@pytest.mark.parametrize("filters", ["0", "1", "2", "3", "4", "41302"])
def test_images_of_every_filter(filters: str, tmp_path: Path) -> None:
    assert np.array_equal(pathfinder._image(write(tmp_path / "a.png", png(IMAGE, filters))), IMAGE)


def test_damaged_images_are_refused(tmp_path: Path) -> None:
    """Cut at any byte, or with any bit of a sample of bytes turned: Pillow's decoder alone would take many of them."""
    good = png(IMAGE, "4")
    damaged = [good[:end] for end in range(0, len(good) - 12, 7)]
    damaged += [good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :] for at in range(0, len(good) - 12, 5)]
    for body in damaged:
        with pytest.raises(ValueError, match=r"a\.png"):
            pathfinder._image(write(tmp_path / "a.png", body))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0), "got 32 x 32 in mode RGB"),
        (struct.pack(">IIBBBBB", 32, 32, 16, 0, 0, 0, 0), "got 32 x 32 in mode I;16"),
        (struct.pack(">IIBBBBB", 100_000, 100_000, 8, 0, 0, 0, 0), "a.png"),
    ],
)
def test_other_images_are_refused(header: bytes, message: str, tmp_path: Path) -> None:
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(99))), (b"IEND", b"")]
    body = b"\x89PNG\r\n\x1a\n" + b"".join(map(chunk, parts))
    with pytest.raises(ValueError, match=message):
        pathfinder._image(write(tmp_path / "a.png", body))
