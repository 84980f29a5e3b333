"""The trainings of the Long Range Arena: which were of equal steps, which have learned anything, and how sure that is."""

from collections.abc import Iterable
from statistics import mean, stdev

from fastmax_lab.lra.tasks import task as shape
from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page.results import group

ENOUGH = 1000
"""Steps below which accuracies are shown but decide nothing."""
PAPER = "fastmax2, paper's scale"
SEED_SPREAD = 1.1
"""Points: the standard deviation over seeds where there is but one. Pooled over the ten attentions of `lra-settings` it is
1.1 on Image and 0.6 on ListOps, of three seeds each."""


def of_kind(measurements: Iterable[Measurement], kind: str) -> list[Measurement]:
    """The runs of equal steps (""), the "short" ones that all attentions have, or the "longer" ones: by their names, because
    in a folder that is not finished steps alone do not tell."""
    return [d for d in measurements if kind == next((k for k in ("short", "longer") if f"-{k}-" in d.name), "")]


def at_chance(measurement: Measurement) -> bool:
    """Whether a run is within two standard errors of always saying the most frequent class."""
    result = measurement.values
    guess = result.get("most_frequent", 1 / shape(measurement.settings["task"]).classes)
    two_errors = 2 * (guess * (1 - guess) / result["test"]["examples"]) ** 0.5
    return bool(result["test"]["accuracy"] < guess + two_errors)


def accuracy(runs: list[Measurement], split: str = "test") -> float:
    """In per cent, the mean over seeds."""
    found = [d.values["test"]["accuracy"] if split == "test" else d.values["dev_accuracy"] for d in runs]
    return float(mean(100 * share for share in found))


def error(runs: list[Measurement]) -> float:
    """Return the standard error of a mean test accuracy, in points: of other test examples and of other seeds."""
    share = accuracy(runs) / 100
    of_examples = 1e4 * share * (1 - share) / sum(d.values["test"]["examples"] for d in runs)
    spread = stdev(accuracy([d]) for d in runs) if len(runs) > 1 else SEED_SPREAD
    return float((of_examples + spread**2 / len(runs)) ** 0.5)


def is_fastmax(measurement: Measurement) -> bool:
    return bool(measurement.settings["attention"].startswith("fastmax"))


def by_attention(runs: Iterable[Measurement]) -> dict[str, list[Measurement]]:
    return group(runs, lambda d: str(d.settings["attention"]))


def best_fastmax(runs: Iterable[Measurement]) -> list[Measurement]:
    """Of the runs of one task, those of the Fastmax with the highest dev accuracy, mean over seeds; none if there is none."""
    named = by_attention(d for d in runs if is_fastmax(d))
    return max(named.values(), key=lambda of: accuracy(of, "dev"), default=[])
