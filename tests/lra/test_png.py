"""The PNG reader: all five filters, against an encoder written for the test; damaged and foreign images."""

import zlib

import numpy as np
import pytest

from fastmax.lra.generators import png
from tests.lra import samples

IMAGE = np.random.default_rng(0).integers(0, 256, (7, 5), np.uint8)


@pytest.mark.parametrize("filters", ["0", "1", "2", "3", "4", "41302"])
def test_filters(filters: str) -> None:
    assert np.array_equal(png.decode(samples.png(IMAGE, filters)), IMAGE)


def test_damage_is_refused() -> None:
    good = samples.png(IMAGE, "4")
    for end in range(len(good)):
        with pytest.raises(ValueError, match="PNG"):
            png.decode(good[:end])
    for at in range(8, len(good)):
        with pytest.raises(ValueError, match=r"PNG|expected"):
            png.decode(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            [(b"IHDR", bytes([0, 0, 0, 1, 0, 0, 0, 1, 8, 2, 0, 0, 0]))],
            "8-bit grey without interlace, got depth 8, colour 2",
        ),
        ([(b"IHDR", bytes([0, 0, 0, 1, 0, 0, 0, 1, 8, 0, 0, 0, 0])), (b"IDAT", b"no")], "damaged PNG"),
        (
            [(b"IHDR", bytes([0, 0, 0, 1, 0, 0, 0, 1, 8, 0, 0, 0, 0])), (b"IDAT", zlib.compress(b"\x07\x01"))],
            "unknown PNG filter 7",
        ),
        (
            [(b"IHDR", bytes([0, 0, 0, 9, 0, 0, 0, 9, 8, 0, 0, 0, 0])), (b"IDAT", zlib.compress(b"\x00\x01"))],
            "9 rows of 9 pixels, got 2 bytes",
        ),
        ([], "got depth 0"),
    ],
)
def test_other_images_are_refused(parts: list[tuple[bytes, bytes]], message: str) -> None:
    body = b"".join(map(samples.chunk, [*parts, (b"IEND", b"")]))
    with pytest.raises(ValueError, match=message):
        png.decode(b"\x89PNG\r\n\x1a\n" + body)
