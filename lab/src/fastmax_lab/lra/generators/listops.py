"""ListOps expressions by the official recipe: whole forests of random trees, level by level."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

MAX_DEPTH = 10
MAX_ARGUMENTS = 10
OPERATOR_PROBABILITY = 0.25
OPERATORS = ("MIN", "MAX", "MED", "SM")
FIRST_OPERATOR = 11  # tokens: 0 is padding, 1 to 10 the digits, 11 to 14 the operators
CLOSE = 15
_CANDIDATES = 2048


@dataclass
class _Level:
    """The nodes at one depth, tree by tree; `arguments` is 0 for a digit, and the children follow in the next level."""

    tree: np.ndarray
    arguments: np.ndarray

    @property
    def operators(self) -> np.ndarray:
        return np.flatnonzero(self.arguments)


def generate(
    rng: np.random.Generator, shortest: int, longest: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield batches of tokens (count, longest), lengths and labels, without end and without duplicates.

    Accepted are trees of more than `shortest` and fewer than `longest` tokens, as in the official generator.
    """
    seen: set[bytes] = set()
    while True:
        tokens, lengths, labels = _forest(rng, shortest, longest)
        new = []
        for row, length in enumerate(lengths):
            expression = tokens[row, :length].tobytes()
            if expression not in seen:
                seen.add(expression)
                new.append(row)
        yield tokens[new], lengths[new], labels[new]


def _forest(rng: np.random.Generator, shortest: int, longest: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    levels = _accepted(_shapes(rng), shortest, longest)
    digits = [rng.integers(0, 10, len(level.tree), np.int8) for level in levels]
    operators = [rng.integers(0, len(OPERATORS), len(level.tree), np.int8) for level in levels]
    labels = _values(levels, digits, operators)
    sizes = _sizes(levels)
    tokens = np.zeros((len(sizes[0]), longest), np.uint8)
    position = np.zeros(len(sizes[0]), np.intp)
    for depth, level in enumerate(levels):
        parents = level.operators
        token = np.where(level.arguments > 0, operators[depth] + FIRST_OPERATOR, digits[depth] + 1)
        tokens[level.tree, position] = token
        tokens[level.tree[parents], position[parents] + sizes[depth][parents] - 1] = CLOSE
        if not len(parents):
            break
        before = np.cumsum(sizes[depth + 1]) - sizes[depth + 1]
        counts = level.arguments[parents]
        position = before + np.repeat(position[parents] + 1 - before[_starts(counts)], counts)
    return tokens, sizes[0].astype(np.int32), labels.astype(np.int64)


def _shapes(rng: np.random.Generator) -> list[_Level]:
    """Return trees whose root is an operator: a lone digit would be too short."""
    tree = np.arange(_CANDIDATES)
    levels = [_Level(tree, rng.integers(2, MAX_ARGUMENTS + 1, len(tree)))]
    for depth in range(2, MAX_DEPTH + 1):
        tree = np.repeat(levels[-1].tree, levels[-1].arguments)
        operator = rng.random(len(tree)) < (OPERATOR_PROBABILITY if depth < MAX_DEPTH else 0)
        arguments = np.zeros(len(tree), np.int64)
        arguments[operator] = rng.integers(2, MAX_ARGUMENTS + 1, np.count_nonzero(operator))
        levels.append(_Level(tree, arguments))
    return levels


def _accepted(levels: list[_Level], shortest: int, longest: int) -> list[_Level]:
    """Keep the trees of a length in range. A digit is one token, an operator two: itself and its closing bracket."""
    length = np.zeros(_CANDIDATES)
    for level in levels:
        length += np.bincount(level.tree, 1 + (level.arguments > 0), _CANDIDATES)
    accepted = (length > shortest) & (length < longest)
    number = np.cumsum(accepted) - 1
    kept = [accepted[level.tree] for level in levels]
    return [_Level(number[v.tree[k]], v.arguments[k]) for v, k in zip(levels, kept, strict=True)]


def _sizes(levels: list[_Level]) -> list[np.ndarray]:
    """Return the number of tokens in the subtree of each node."""
    sizes = [np.ones(len(level.tree), np.intp) for level in levels]
    for depth in range(len(levels) - 2, -1, -1):
        parents = levels[depth].operators
        if len(parents):
            sums = np.add.reduceat(sizes[depth + 1], _starts(levels[depth].arguments[parents]))
            sizes[depth][parents] = sums + 2
    return sizes


def _values(levels: list[_Level], digits: list[np.ndarray], operators: list[np.ndarray]) -> np.ndarray:
    """Return the value of every root, computed from the leaves up."""
    below = digits[-1]
    for depth in range(len(levels) - 2, -1, -1):
        value = digits[depth].copy()
        parents = levels[depth].operators
        if len(parents):
            counts = levels[depth].arguments[parents]
            starts = _starts(counts)
            table = np.full((len(parents), MAX_ARGUMENTS), 99, np.int8)
            table[np.repeat(np.arange(len(parents)), counts), np.arange(len(below)) - np.repeat(starts, counts)] = below
            table.sort(1)
            row = np.arange(len(parents))
            median = (table[row, (counts - 1) // 2] + table[row, counts // 2]) // 2
            total = np.add.reduceat(below.astype(np.int64), starts) % 10
            choices = [table[:, 0], table[row, counts - 1], median, total]
            value[parents] = np.choose(operators[depth][parents], choices)
        below = value
    return below


def _starts(counts: np.ndarray) -> np.ndarray:
    """Return where each group of children begins in the next level."""
    starts: np.ndarray = np.cumsum(counts) - counts
    return starts
