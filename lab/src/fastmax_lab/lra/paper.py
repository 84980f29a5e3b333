"""The paper's own figures for the Long Range Arena, to print beside ours: each task module has its column."""

from fastmax_lab.lra import tasks

WARNING = (
    "The paper's accuracies mix harnesses (its vanilla row is one harness's published row, its linear row another's), so "
    "they are for orientation only; compare rows of one sweep."
)


_SAME = {"softmax": "vanilla", "fastmax2, paper's scale": "fastmax2"}
"""Softmax is the same function as vanilla, by another kernel; the paper's Fastmax2 stands beside ours of either scale."""


def accuracy(attention: str, task: str) -> float | None:
    """Return the paper's accuracy in per cent."""
    return tasks.module(task).PAPER.accuracy.get(_SAME.get(attention, attention))


def speed(attention: str, task: str) -> float | None:
    """Return the steps per second on the paper's GPU."""
    return tasks.module(task).PAPER.steps_per_second.get(attention)


def speed_ratio(attention: str, task: str) -> float | None:
    """Return the steps per second over those of vanilla."""
    own, vanilla = speed(attention, task), speed("vanilla", task)
    return None if own is None or vanilla is None else own / vanilla
