"""The paper's own figures for the Long Range Arena, to print beside ours."""

TASKS = ("listops", "text", "retrieval", "image", "pathfinder")

ACCURACY: dict[str, tuple[float, ...]] = {
    "vanilla": (38.37, 61.95, 80.69, 40.57, 65.26),
    "informer": (36.95, 63.60, 75.25, 37.55, 50.33),
    "reformer": (37.00, 64.75, 78.50, 43.72, 66.40),
    "linear": (16.13, 65.90, 53.09, 42.34, 75.30),
    "performer": (37.80, 64.39, 79.05, 39.78, 67.41),
    "fastmax2": (37.40, 64.30, 78.11, 43.18, 66.55),
    "fastmax1": (37.20, 63.25, 78.21, 42.76, 66.67),
}
"""Per cent, in the order of TASKS."""

STEPS_PER_SECOND: dict[str, tuple[float, ...]] = {
    "vanilla": (6.4, 1.8, 1.7, 3.0, 6.1),
    "fastmax2": (11.6, 6.1, 6.9, 3.0, 6.8),
    "fastmax1": (47.4, 26.7, 24.7, 12.8, 24.4),
}
"""In training, on an RTX A5000."""

WARNING = (
    "The paper's accuracies mix harnesses (its vanilla row is one harness's published row, its linear row another's), so "
    "they are for orientation only; compare rows of one sweep."
)


def accuracy(attention: str, task: str) -> float | None:
    """Softmax is the same function as vanilla, by another kernel."""
    row = ACCURACY.get("vanilla" if attention == "softmax" else attention)
    return None if row is None else row[TASKS.index(task)]


def speed_ratio(attention: str, task: str) -> float | None:
    """Steps per second over those of vanilla."""
    row = STEPS_PER_SECOND.get(attention)
    return None if row is None else row[TASKS.index(task)] / STEPS_PER_SECOND["vanilla"][TASKS.index(task)]
