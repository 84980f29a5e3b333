"""Text for small language models: Tiny Shakespeare, WikiText-2, or expressions of ListOps, which need no data."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fastmax_lab.data import shakespeare, wikitext
from fastmax_lab.lra.generators import listops
from fastmax_lab.lra.generators.listops import CLOSE, FIRST_OPERATOR, OPERATORS

GENERATED_TOKENS = 60_000
_EQUALS = CLOSE + 1


@dataclass(frozen=True)
class Text:
    """Token numbers, and what each is written as."""

    train: Tensor
    val: Tensor
    alphabet: tuple[str, ...]


def load(name: str, data: Path) -> Text:
    """Load the text: `shakespeare` and `wikitext2` are read from `data`, `listops` is made."""
    if name == "listops":
        return _listops()
    read = {"shakespeare": shakespeare.load, "wikitext2": wikitext.load}[name]
    train, alphabet = read("train", data)
    val, _ = read("val", data)
    return Text(torch.from_numpy(train), torch.from_numpy(val), tuple(chr(letter) for letter in alphabet))


def _listops() -> Text:
    """Make lines such as `[MAX 2 [SM 7 8 ] ] = 5`, of 16 to 64 tokens, always the same."""
    lines: list[np.ndarray] = []
    count = 0
    for tokens, lengths, labels in listops.generate(np.random.default_rng(0), 16, 64):
        for row, length, label in zip(tokens, lengths, labels, strict=True):
            lines.append(np.concatenate((row[:length], [_EQUALS, label + 1, 0])).astype(np.uint8))
            count += len(lines[-1])
        if count >= GENERATED_TOKENS:
            break
    text = torch.from_numpy(np.concatenate(lines)[:GENERATED_TOKENS])
    names = ["\n", *(str(digit) for digit in range(FIRST_OPERATOR - 1)), *(f"[{name}" for name in OPERATORS), "]", "="]
    train = len(text) * 9 // 10
    return Text(text[:train], text[train:], tuple(names))
