"""ListOps: the recipe, the labels by an evaluator that shares nothing with the generator, and the official files."""

import random
import re
import statistics
from pathlib import Path

import numpy as np
import pytest
from lab.tests.lra.samples import SHARED, needs_shared, write

from fastmax_lab.data import files
from fastmax_lab.lra import tasks
from fastmax_lab.lra.generators import listops as listops_trees
from fastmax_lab.lra.tasks import listops

WORDS = ["", *"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]"]


def value(expression: str) -> int:
    """Rewritten into Python and evaluated by it."""
    code = expression.replace("(", " ").replace(")", " ").replace("]", "]),")
    code = re.sub(r"(\d)", r"\1,", code)
    for name in ("MIN", "MAX", "MED", "SM"):
        code = code.replace(f"[{name}", f"{name}([")
    functions = {"MIN": min, "MAX": max, "MED": lambda x: int(statistics.median(x)), "SM": lambda x: sum(x) % 10}
    return int(eval(code.strip().rstrip(","), functions))


def text(tokens: np.ndarray) -> str:
    return " ".join(WORDS[token] for token in tokens)


def slow_tree(rng: random.Random, depth: int = 1) -> int:
    """The length of a tree by the official recursion."""
    if rng.random() > (0.25 if depth < 10 else -1):
        return 1
    return 2 + sum(slow_tree(rng, depth + 1) for _ in range(rng.randint(2, 10)))


def test_labels_by_an_independent_evaluator(tmp_path: Path) -> None:
    split = tasks.load("listops", "train", tmp_path, limit=60)
    assert split.tokens.shape == (60, 2000)
    for tokens, length, label in zip(split.tokens, split.lengths, split.labels, strict=True):
        assert 500 < length < 2000
        assert tokens[:length].all()
        assert not tokens[length:].any()
        assert value(text(tokens[:length])) == label


def test_the_shape_of_the_trees(tmp_path: Path) -> None:
    split = tasks.load("listops", "val", tmp_path, limit=50)
    arguments, deepest, operators = [], 0, np.bincount(split.tokens.ravel(), minlength=16)[11:15]
    for tokens, length in zip(split.tokens, split.lengths, strict=True):
        open_: list[int] = []
        for token in tokens[:length]:
            if token == listops_trees.CLOSE:
                arguments.append(open_.pop())
                continue
            if open_:
                open_[-1] += 1
            if token >= listops_trees.FIRST_OPERATOR:
                open_.append(0)
                deepest = max(deepest, len(open_))
        assert not open_
    counts = np.bincount(arguments, minlength=11)
    assert deepest == 9, "the tenth level holds digits only"
    assert counts[:2].sum() == 0
    assert len(counts) == 11
    assert counts[2:].min() > 0.5 * counts.sum() / 9
    assert operators.min() > 0.9 * operators.mean()


def test_lengths_are_distributed_as_by_the_official_recursion() -> None:
    rng = random.Random(0)
    slow = [n for n in (slow_tree(rng) for _ in range(12_000)) if 100 < n < 400]
    batches = listops_trees.generate(np.random.default_rng(0), 100, 400)
    fast = np.concatenate([next(batches)[1] for _ in range(4)])
    spread = np.sqrt(np.var(slow) / len(slow) + np.var(fast) / len(fast))
    assert abs(np.mean(slow) - np.mean(fast)) < 4 * spread
    assert abs(np.std(slow) - np.std(fast)) < 4 * spread


def test_a_quarter_of_the_arguments_are_operators() -> None:
    arguments = listops_trees._shapes(np.random.default_rng(0))[1].arguments
    spread = np.sqrt(0.25 * 0.75 / len(arguments))
    assert abs((arguments > 0).mean() - 0.25) < 4 * spread < 0.02


def test_duplicates_are_removed() -> None:
    batches = listops_trees.generate(np.random.default_rng(0), 2, 6)
    tokens = np.concatenate([next(batches)[0] for _ in range(9)])
    assert len(np.unique(tokens, axis=0)) == len(tokens) > 1000


def test_official_files(tmp_path: Path) -> None:
    rows = ["( ( ( [MAX 3 ) 9 ) ] )\t9", "( ( ( [SM 7 ) ( ( ( [MED 1 ) 4 ) ] ) ) ] )\t9", f"( [MIN {'1 ' * 30}] )\t1"]
    for name, header in (("train", "Source\tTarget\n"), ("val", "")):
        body = header + "\n".join(rows) + "\n"
        write(tmp_path / f"lra_release/lra_release/listops-1000/basic_{name}.tsv", body.encode())
        split = tasks.load("listops", name, tmp_path, length=20)
        assert [text(t[:n]) for t, n in zip(split.tokens, split.lengths, strict=True)] == [
            "[MAX 3 9 ]",
            "[SM 7 [MED 1 4 ] ]",
        ], "the third expression is too long, and a cut one has no value"
        assert split.labels.tolist() == [9, 9]
    with pytest.raises(FileNotFoundError, match=r"lacks listops-1000/basic_test.tsv; there is .*basic_train"):
        tasks.load("listops", "test", tmp_path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("[MAX 3 9 ] 9", "an expression, a tab and a digit"),
        ("[MAX 3 9 ]\t12", "an expression, a tab and a digit"),
        ("[AVG 3 9 ]\t3", "expected digits"),
        ("[MAX 13 9 ]\t9", "expected digits"),
    ],
)
def test_a_malformed_row_is_named(row: str, message: str, tmp_path: Path) -> None:
    write(tmp_path / "listops-1000/basic_train.tsv", f"Source\tTarget\n[MAX 1 2 ]\t2\n{row}\n".encode())
    with pytest.raises(ValueError, match=rf"basic_train.tsv, line 3: .*{message}"):
        tasks.load("listops", "train", tmp_path)
    assert not list((tmp_path / "arrays").iterdir()), "nothing half-written"


@needs_shared
def test_published_expressions() -> None:
    """Tokenized, written out again and evaluated, they have the values that were published."""
    rows = [line.split(b"\t") for _, line in files.lines(SHARED / "listops/test_d20s.tsv.xz")]
    assert len(rows) == 10_000
    for label, expression in rows[::10]:
        assert value(text(np.frombuffer(listops.tokenize(expression), np.uint8))) == int(label)
