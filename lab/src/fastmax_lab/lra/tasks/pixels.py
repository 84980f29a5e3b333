"""Images as sequences: 32 x 32 grey pixels row by row, or the means of larger squares for a shorter sequence."""

from math import isqrt

import numpy as np

from fastmax_lab.data.blocks import ExampleBlock

SIDE = 32
LENGTHS = tuple((SIDE >> k) ** 2 for k in range(5))  # 1024, 256, 64, 16, 4


def block(images: np.ndarray, labels: np.ndarray, length: int) -> ExampleBlock:
    """Return a block of (count, 32, 32) bytes; every pixel is a token."""
    side = isqrt(length)
    square = SIDE // side
    means = images.reshape(-1, side, square, side, square).mean((2, 4)) if square > 1 else images
    tokens = np.rint(means).astype(np.uint8).reshape(-1, length)
    return ExampleBlock(tokens, np.full(len(tokens), length, np.int32), labels.astype(np.int64))
