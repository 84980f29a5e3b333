"""Learning rates: each a function of the step alone, so that a run resumes without any state."""

from math import cos, pi, sqrt

from fastmax_lab.lra.config import TrainPreset

DIV, FINAL_DIV = 25.0, 1e4
"""OneCycle starts at lr / DIV and ends at lr / DIV / FINAL_DIV, as in PyTorch."""


def learning_rate(train: TrainPreset, step: int) -> float:
    """Return the rate of the step, counted from 0."""
    if train.schedule == "onecycle":
        return _one_cycle(train, step)
    if train.schedule == "rsqrt":
        # unnormalised: the peak is lr / sqrt(warmup)
        return train.lr * min(1.0, (step + 1) / max(train.warmup, 1)) / sqrt(max(step + 1, train.warmup))
    if train.schedule == "cosine":
        if step < train.warmup:
            return train.lr * (step + 1) / train.warmup
        progress = (step - train.warmup) / max(train.steps - train.warmup, 1)
        return train.lr * 0.5 * (1 + cos(pi * min(progress, 1.0)))
    raise ValueError(f"schedule must be onecycle, rsqrt or cosine, got {train.schedule!r}")


def _one_cycle(train: TrainPreset, step: int) -> float:
    """Rise linearly to step warmup - 1, then fall linearly to the last step."""
    start, end = train.lr / DIV, train.lr / DIV / FINAL_DIV
    top = min(train.warmup, train.steps) - 1
    if step < top:
        return start + (train.lr - start) * step / top
    return train.lr + (end - train.lr) * (step - max(top, 0)) / max(train.steps - 1 - max(top, 0), 1)
