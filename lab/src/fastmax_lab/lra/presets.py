"""The presets of all tasks, by harness, from the task modules."""

from fastmax_lab.lra import tasks
from fastmax_lab.lra.config import Preset

NAMES = ("skyformer", "nystrom", "google")


def preset(name: str, task: str) -> Preset:
    if name not in NAMES:
        raise ValueError(f"preset must be one of {', '.join(NAMES)}, got {name!r}")
    return tasks.module(task).PRESETS[name]
