"""Timing on a noisy machine: contestants take turns in one process, and only ratios within a run are to be trusted."""

import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import asdict, dataclass
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class RoundTimes:
    """Seconds per call over the rounds; `paired` is the median of the ratios to the yardstick right before and after."""

    best: float
    median: float
    rounds: tuple[float, ...] = ()
    paired: float | None = None


def interleave(
    contestants: Mapping[Name, Callable[[], object]],
    *,
    rounds: int = 5,
    least_seconds: float = 0.02,
    slow: tuple[float, int] | None = None,
    yardstick: Name | None = None,
) -> dict[Name, RoundTimes]:
    """Run every contestant to warm up, then in turns. Short ones are repeated within a turn: one clock tick is long.

    `slow` = (seconds, turns): one that takes longer than these seconds sits out after so many turns. `yardstick` names the
    contestant that is measured right before and after each other one: on a machine whose pace wanders within a round, a
    ratio of neighbours is more reliable than a ratio of two bests, which may be of different minutes.
    """
    repeats = {}
    for name, call in contestants.items():
        start = time.perf_counter()
        call()
        if time.perf_counter() - start < 1:  # what takes longer is warm by the time that it ends
            start = time.perf_counter()
            call()
        repeats[name] = max(1, min(1000, int(least_seconds / max(time.perf_counter() - start, 1e-9))))
    seconds: dict[Name, list[float]] = {name: [] for name in contestants}
    ratios: dict[Name, list[float]] = {name: [] for name in contestants}

    def measure(name: Name) -> float:
        start = time.perf_counter()
        for _ in range(repeats[name]):
            contestants[name]()
        seconds[name].append((time.perf_counter() - start) / repeats[name])
        return seconds[name][-1]

    for turn in range(rounds):
        before = None if yardstick is None else measure(yardstick)
        for name in contestants:
            if name == yardstick or (slow is not None and turn >= slow[1] and min(seconds[name]) > slow[0]):
                continue
            own = measure(name)
            if yardstick is not None and before is not None:
                after = measure(yardstick)
                ratios[name].append(own / ((before + after) / 2))
                before = after
    return {
        name: RoundTimes(
            min(s), statistics.median(s), tuple(s), statistics.median(ratios[name]) if ratios[name] else None
        )
        for name, s in seconds.items()
    }


def seconds(timings: Mapping[str, RoundTimes]) -> dict[str, dict[str, float]]:
    """Return the times for JSON."""
    return {name: asdict(timing) for name, timing in timings.items()}
