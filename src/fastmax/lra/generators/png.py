"""A reader of PNG images, as far as Pathfinder needs it: 8-bit grey, not interlaced."""

import struct
import zlib

import numpy as np

_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def decode(data: bytes) -> np.ndarray:
    """The pixels (height, width) in bytes. ValueError for anything else than a whole 8-bit grey image."""
    if not data.startswith(_SIGNATURE):
        raise ValueError(f"expected a PNG image, got {data[:8]!r}")
    chunks = _chunks(data)
    width, height, depth, colour, _, _, interlace = struct.unpack(">IIBBBBB", chunks.get(b"IHDR", bytes(13)))
    if (depth, colour, interlace) != (8, 0, 0):
        raise ValueError(
            f"expected 8-bit grey without interlace, got depth {depth}, colour {colour}, interlace {interlace}"
        )
    try:
        raw = zlib.decompress(chunks.get(b"IDAT", b""))
    except zlib.error as error:
        raise ValueError(f"damaged PNG image ({error})") from error
    if len(raw) != height * (width + 1):
        raise ValueError(f"expected {height} rows of {width} pixels, got {len(raw)} bytes")
    rows = np.frombuffer(raw, np.uint8).reshape(height, width + 1)
    image = np.zeros((height + 1, width), np.uint8)  # the row above the first counts as black
    for y, row in enumerate(rows):
        image[y + 1] = _unfiltered(int(row[0]), row[1:], image[y])
    return image[1:]


def _chunks(data: bytes) -> dict[bytes, bytes]:
    chunks: dict[bytes, bytes] = {}
    at = len(_SIGNATURE)
    while at + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        check = data[at + 8 + length : at + 12 + length]
        if len(check) < 4 or struct.unpack(">I", check)[0] != zlib.crc32(kind + body):
            raise ValueError("damaged or truncated PNG image")
        chunks[kind] = chunks.get(kind, b"") + body
        at += 12 + length
    if b"IEND" not in chunks:
        raise ValueError("truncated PNG image")
    return chunks


def _unfiltered(kind: int, row: np.ndarray, above: np.ndarray) -> np.ndarray:
    """Filters 0 to 4 of the PNG specification, for one byte per pixel."""
    if kind == 0:
        return row
    if kind == 1:
        return np.cumsum(row, dtype=np.uint8)
    if kind == 2:
        total: np.ndarray = row + above
        return total
    if kind not in (3, 4):
        raise ValueError(f"unknown PNG filter {kind}")
    out = bytearray(len(row))
    left = corner = 0
    for x, (value, up) in enumerate(zip(row.tolist(), above.tolist(), strict=True)):
        left = out[x] = (value + ((left + up) // 2 if kind == 3 else _paeth(left, up, corner))) & 255
        corner = up
    return np.frombuffer(out, np.uint8)


def _paeth(left: int, up: int, corner: int) -> int:
    """Whichever of the three neighbours is nearest to left + up - corner; ties in this order."""
    from_left, from_up, from_corner = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
    if from_left <= from_up and from_left <= from_corner:
        return left
    return up if from_up <= from_corner else corner
