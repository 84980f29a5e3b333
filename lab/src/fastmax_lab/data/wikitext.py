"""WikiText-2 as bytes: its training and its validation text."""

from pathlib import Path

import numpy as np

from fastmax_lab.data import files
from fastmax_lab.data.registry import DataSet

NAMES = {
    split: tuple(f"{folder}wiki.{name}.tokens{end}" for folder in ("wikitext2/", "") for end in (".xz", ""))
    for split, name in (("train", "train"), ("val", "valid"))
}
DATA = DataSet(
    "wikitext2",
    "WikiText-2, articles of Wikipedia, bytes",
    tuple(NAMES.values()),
    hint=(
        "WikiText-2 (Merity 2016, CC BY-SA 3.0) is not fetched here: put wiki.train.tokens and wiki.valid.tokens, plain or "
        "as .xz, into the folder wikitext2 of the data folder."
    ),
)


def load(split: str, data: Path) -> tuple[np.ndarray, bytes]:
    """Load token numbers (count,) in bytes, and the alphabet that they count: token i is alphabet[i].

    The alphabet is that of both texts.
    """
    if split not in NAMES:
        raise ValueError(f"split must be train or val, got {split!r}")
    texts = {}
    for name, places in NAMES.items():
        found = files.find(data, places)
        if not found:
            raise files.missing("wikitext2", data, [places[0]])
        texts[name] = np.frombuffer(files.content(next(iter(found.values()))), np.uint8)
    alphabet = np.unique(np.concatenate([np.unique(text) for text in texts.values()]))
    return np.searchsorted(alphabet, texts[split]).astype(np.uint8), alphabet.tobytes()
