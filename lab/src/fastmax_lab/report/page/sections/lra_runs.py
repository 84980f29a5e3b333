"""The trainings of the Long Range Arena: their kinds, which are at chance level, and their standard errors."""

from collections.abc import Iterable
from statistics import mean, stdev

from fastmax_lab.lra.tasks import task as shape
from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page.results import group, spread

ENOUGH = 1000
"""Steps below which accuracies are shown but decide nothing."""
PAPER = "fastmax2, paper's scale"
SEED_SPREAD = 1.1
"""Points: the standard deviation over seeds where there is but one. Pooled over the ten attentions of `lra-settings` it is
1.1 on Image and 0.6 on ListOps, of three seeds each."""


def split(measurements: Iterable[Measurement]) -> tuple[list[Measurement], list[Measurement]]:
    """Return the runs of equal steps, and the longer ones in equal time.

    Names decide, because in a folder that is not finished steps are ambiguous.
    """
    found = list(measurements)
    return [d for d in found if "-longer-" not in d.name], [d for d in found if "-longer-" in d.name]


def at_chance(measurement: Measurement) -> bool:
    """Return True if a run is within two standard errors of always predicting the most frequent class."""
    result = measurement.values
    frequent = result.get("most_frequent", 1 / shape(measurement.settings["task"]).classes)
    two_errors = 2 * (frequent * (1 - frequent) / result["test"]["examples"]) ** 0.5
    return bool(result["test"]["accuracy"] < frequent + two_errors)


def learned(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Return the runs of tasks on which any run has left chance level: what the others show is noise."""
    of_task = group(measurements, lambda d: str(d.settings["task"]))
    return [d for runs in of_task.values() if not all(map(at_chance, runs)) for d in runs]


def accuracy(runs: list[Measurement], split: str = "test") -> float:
    """Return the accuracy in per cent, the mean over seeds."""
    found = [d.values["test"]["accuracy"] if split == "test" else d.values["dev_accuracy"] for d in runs]
    return float(mean(100 * share for share in found))


def test_accuracy(measurement: Measurement) -> float:
    return accuracy([measurement])


def dev_accuracy(measurement: Measurement) -> float:
    return accuracy([measurement], "dev")


def dev_curve(runs: list[Measurement]) -> tuple[tuple[int, ...], tuple[float, ...], tuple[float | None, ...]]:
    """Return the steps of the looks at the dev set, and the mean and standard deviation over seeds of their accuracies."""
    looks = list(zip(*(d.values["curves"]["dev"] for d in runs), strict=False))
    means, deviations = zip(*(spread([100 * share for _, _, share in at]) for at in looks), strict=True)
    return tuple(at[0][0] for at in looks), means, deviations


def error(runs: list[Measurement]) -> float:
    """Return the standard error of a mean test accuracy, in points: of other test examples and of other seeds."""
    share = accuracy(runs) / 100
    of_examples = 1e4 * share * (1 - share) / sum(d.values["test"]["examples"] for d in runs)
    spread = stdev(accuracy([d]) for d in runs) if len(runs) > 1 else SEED_SPREAD
    return float((of_examples + spread**2 / len(runs)) ** 0.5)


def error_of_examples(accuracy: float, runs: list[Measurement]) -> float:
    """Return the standard error of an accuracy in per cent on the test examples of these runs, in points."""
    return float((accuracy * (100 - accuracy) / min(d.values["test"]["examples"] for d in runs)) ** 0.5)


def is_fastmax(measurement: Measurement) -> bool:
    return bool(measurement.settings["attention"].startswith("fastmax"))


def by_attention(runs: Iterable[Measurement]) -> dict[str, list[Measurement]]:
    return group(runs, lambda d: str(d.settings["attention"]))


def best_fastmax(runs: Iterable[Measurement]) -> list[Measurement]:
    """Return the runs of the Fastmax with the highest dev accuracy in one task, mean over seeds; none if there is none."""
    named = by_attention(d for d in runs if is_fastmax(d))
    return max(named.values(), key=lambda of: accuracy(of, "dev"), default=[])
