"""Tiny Shakespeare as characters: the first nine tenths for training, the rest for validation."""

from pathlib import Path

import numpy as np

from fastmax_lab.data import files
from fastmax_lab.data.registry import DataSet, Remote

NAMES = ("tinyshakespeare.txt", "tinyshakespeare/input.txt", "input.txt")
DATA = DataSet(
    "tinyshakespeare",
    "Shakespeare's plays, characters",
    (NAMES,),
    (
        Remote(
            "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
            "tinyshakespeare.txt",
            1_115_394,
            "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        ),
    ),
)


def load(split: str, data: Path) -> tuple[np.ndarray, bytes]:
    """Load token numbers (count,) in bytes, and the alphabet that they count: token i is alphabet[i]."""
    if split not in ("train", "val"):
        raise ValueError(f"split must be train or val, got {split!r}")
    found = files.find(data, NAMES)
    if not found:
        raise files.missing("tinyshakespeare", data, NAMES)
    text = np.frombuffer(files.content(next(iter(found.values()))), np.uint8)
    alphabet, tokens = np.unique(text, return_inverse=True)
    train = len(tokens) * 9 // 10
    part = tokens[:train] if split == "train" else tokens[train:]
    return part.astype(np.uint8), alphabet.tobytes()
