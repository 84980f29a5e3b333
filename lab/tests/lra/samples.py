"""Small data sets in the official formats, made by the tests themselves, and ways for a disk to fail."""

import io
import lzma
import resource
import struct
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

SHARED = Path(__file__).parents[4] / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"there is no {SHARED}")


def write(path: Path, body: bytes) -> Path:
    """A file, compressed if its name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(body) if path.suffix == ".xz" else body)
    return path


def tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, body in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    return path


def png(image: np.ndarray, filters: str) -> bytes:
    """Row y is stored with filter number filters[y % len(filters)]: an encoder by the letter of the specification."""
    height, width = image.shape
    x = image.astype(int)
    raw = b""
    for row in range(height):
        kind = int(filters[row % len(filters)])
        line = []
        for column in range(width):
            left = x[row, column - 1] if column else 0
            up = x[row - 1, column] if row else 0
            corner = x[row - 1, column - 1] if row and column else 0
            guess = [0, left, up, (left + up) // 2, paeth(left, up, corner)][kind]
            line.append((x[row, column] - guess) % 256)
        raw += bytes([kind, *line])
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = zlib.compress(raw)
    parts = [(b"IHDR", header), (b"tEXt", b"a\0b"), (b"IDAT", body[:20]), (b"IDAT", body[20:]), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(map(chunk, parts))


def chunk(part: tuple[bytes, bytes]) -> bytes:
    kind, body = part
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def paeth(left: int, up: int, corner: int) -> int:
    p = left + up - corner
    pa, pb, pc = abs(p - left), abs(p - up), abs(p - corner)
    if pa <= pb and pa <= pc:
        return left
    return up if pb <= pc else corner


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Writes beyond so many bytes fail, as they do on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
