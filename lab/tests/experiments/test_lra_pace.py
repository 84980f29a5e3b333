"""The pace of the trainings: it is timed on batches that stand for all of theirs."""

import numpy as np
import pytest

from fastmax_lab.experiments import lra_pace
from fastmax_lab.experiments.lra import TaskBudget, make_config
from fastmax_lab.lra.batches import training_rows
from fastmax_lab.lra.tasks import Split


@pytest.mark.parametrize("grouped", [True, False])
def test_timed_batches_stand_for_all_of_the_training(grouped: bool) -> None:
    """Softmax's price grows with the square of the length, so the mean alone would not do."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(50, 2001, 6000)
    split = Split(np.ones((6000, 2000), np.uint8), lengths, np.zeros(6000, np.int64))
    config = make_config("listops", "fastmax2", {}, 0, TaskBudget(batch=16, steps=300, group_lengths=grouped))
    timed = np.array([batch.tokens.shape[-1] for batch in lra_pace.chosen(split, config)])
    known = lengths if grouped else None
    steps = [training_rows(6000, 16, config.seed, step, lengths=known) for step in range(300)]
    every = np.array([lengths[rows].max() for rows in steps])
    if grouped:
        assert timed.mean() == pytest.approx(every.mean(), rel=0.05)
        assert (timed**2).mean() == pytest.approx((every**2).mean(), rel=0.1)
    else:
        assert timed.tolist() == every[: lra_pace.BATCHES].tolist()
