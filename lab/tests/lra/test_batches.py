"""The order of the data: a function of seed and step; every example once per epoch; nothing lost at the ends."""

from pathlib import Path

import numpy as np
import pytest
import torch
from lab.tests.lra import made_up

from fastmax_lab.lra.batches import in_order, take, training_rows


def test_each_epoch_is_a_permutation() -> None:
    rows = np.concatenate([training_rows(10, 4, seed=3, step=s) for s in range(10)])
    for epoch in range(4):
        assert sorted(rows[epoch * 10 : (epoch + 1) * 10]) == list(range(10))
    assert list(rows[:10]) != list(rows[10:20])


def test_any_step_is_known_without_those_before() -> None:
    wanted = [training_rows(1000, 7, seed=1, step=s).tolist() for s in range(300)]
    assert training_rows(1000, 7, seed=1, step=299).tolist() == wanted[299]
    assert training_rows(1000, 7, seed=1, step=4).tolist() == wanted[4]
    assert training_rows(1000, 7, seed=2, step=4).tolist() != wanted[4]


def test_a_batch_larger_than_the_data_repeats_it() -> None:
    assert np.bincount(training_rows(3, 9, seed=0, step=5)).tolist() == [3, 3, 3]


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("examples", [1000, 1024, 37])
def test_grouped_by_length(examples: int, pair: bool) -> None:
    """Every example once per epoch, any step without those before, batches of similar length in no order of length."""
    batch = 4
    lengths = np.random.default_rng(0).integers(1, 1000, (examples, 2) if pair else examples)
    steps = [training_rows(examples, batch, seed=1, step=s, lengths=lengths) for s in range(2 * examples // batch)]
    rows = np.concatenate(steps)
    assert sorted(rows[:examples]) == list(range(examples))
    again = training_rows(examples, batch, seed=1, step=5, lengths=lengths)
    assert again.tolist() == steps[5].tolist()
    longest = lengths.max(-1) if pair else lengths

    def padded(group: bool) -> int:
        many = range(examples // batch)
        return sum(
            batch * int(longest[training_rows(examples, batch, 1, s, lengths=lengths if group else None)].max())
            for s in many
        )

    assert padded(True) < 0.5 * padded(False) + 0.5 * longest.sum()
    first = [int(longest[s].max()) for s in steps[:8]]
    assert first != sorted(first)


def test_in_order() -> None:
    assert [rows.tolist() for rows in in_order(5, 2)] == [[0, 1], [2, 3], [4]]
    assert [rows.tolist() for rows in in_order(5, 2, whole=True)] == [[0, 1], [2, 3]]
    assert [rows.tolist() for rows in in_order(5, 2, start=4, limit=3)] == [[4, 0], [1]]


def test_take_cuts_to_the_longest() -> None:
    split = made_up.load("text", "train", Path())
    rows = np.argsort(split.lengths)[:6]
    batch = take(split, rows)
    assert batch.tokens.shape == (6, split.lengths[rows].max())
    assert batch.tokens.dtype == batch.labels.dtype == torch.int64
    assert batch.lengths is not None
    assert batch.lengths.tolist() == split.lengths[rows].tolist()
    assert take(split, rows, trim=False).tokens.shape == (6, made_up.LENGTH)
    assert take(split, rows[:1]).lengths is None, "one alone has no padding"
    images = take(made_up.load("image", "train", Path()), rows)
    assert images.lengths is None
    pairs = take(made_up.load("retrieval", "train", Path()), rows)
    assert pairs.tokens.shape[:2] == (6, 2)
    assert pairs.lengths is not None
    assert pairs.lengths.shape == (6, 2)
