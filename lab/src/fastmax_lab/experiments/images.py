"""Small images of ten classes: MNIST, or blurred random shapes that are moved about, which need no data."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fastmax_lab.data import mnist

SIDE = 28
GENERATED = {"train": 4000, "test": 1000}


@dataclass(frozen=True)
class Images:
    """Pixels (count, 28, 28) in bytes, and labels."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor


def load(name: str, data: Path) -> Images:
    """Load the images: `mnist` is read from `data`, `shapes` are made."""
    splits = [_shapes(split) if name == "shapes" else mnist.load(split, data) for split in ("train", "test")]
    tensors = [torch.from_numpy(np.array(array)) for pair in splits for array in pair]
    return Images(tensors[0], tensors[1].long(), tensors[2], tensors[3].long())


def _shapes(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Make images: a class is a random pattern of low frequencies; an example of it is shifted, dimmed and noisy."""
    patterns = np.random.default_rng(0).standard_normal((10, SIDE, SIDE))
    spectrum = np.fft.fft2(patterns)
    frequency = np.fft.fftfreq(SIDE) ** 2
    smooth = np.fft.ifft2(spectrum * np.exp(-300 * (frequency[:, None] + frequency[None]))).real
    smooth /= smooth.std((1, 2), keepdims=True)
    rng = np.random.default_rng([1, list(GENERATED).index(split)])
    count = GENERATED[split]
    labels = rng.integers(0, 10, count)
    shifts = rng.integers(-3, 4, (count, 2))
    images = np.stack([np.roll(smooth[c], shift, (0, 1)) for c, shift in zip(labels, shifts, strict=True)])
    images = images * rng.uniform(0.5, 1.0, (count, 1, 1)) + rng.standard_normal(images.shape) * 0.7
    return np.clip(128 + 48 * images, 0, 255).astype(np.uint8), labels
