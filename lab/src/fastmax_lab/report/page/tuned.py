"""Runs of several learning rates and seeds: the best rate of each attention by its first seed, all seeds of that rate."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Any

from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page.parts import Series, Table
from fastmax_lab.report.page.results import group, spread

Value = Callable[[Measurement], float]
CLEAR = 2.0
"""Standard errors that a difference has to exceed."""


@dataclass(frozen=True)
class Gap:
    """The mean difference between two attentions over pairs of the same seed. A single pair has no error."""

    mean: float
    error: float | None
    seeds: int

    def side(self, error: float = 0.0) -> int:
        """Return 1 if clearly above 0, -1 if clearly below, else 0. `error` counts if it is larger than that over seeds."""
        if self.error is None or abs(self.mean) <= CLEAR * max(self.error, error):
            return 0
        return 1 if self.mean > 0 else -1

    def noise(self, decimals: int, unit: float = 1.0) -> str:
        """Return words on the standard error of the difference, to follow a number; "" if there is none."""
        return "" if self.error is None else f", standard error {unit * self.error:.{decimals}f}"


def gap(ours: dict[int, float], theirs: dict[int, float]) -> Gap | None:
    """Return the gap over the seeds that both have, or None if there are none."""
    pairs = [value - theirs[seed] for seed, value in ours.items() if seed in theirs]
    if not pairs:
        return None
    mean, deviation = spread(pairs)
    return Gap(mean, None if deviation is None else deviation / sqrt(len(pairs)), len(pairs))


@dataclass(frozen=True)
class Tuned:
    """An attention at its best rate: the reported values and those that chose the rate, by seed."""

    attention: str
    rate: float
    rates: tuple[float, ...]
    values: dict[int, float]
    chosen: dict[int, float]
    gap: Gap | None
    """The gap to softmax."""

    @property
    def edge(self) -> str:
        """Return the end of the tried rates that the best one is at, beyond which a better one may be; "" if it is inside."""
        if len(self.rates) < 2:
            return ""
        return "highest" if self.rate == self.rates[-1] else "lowest" if self.rate == self.rates[0] else ""


def tuned(found: list[Measurement], value: Value, chosen_by: Value, *, higher: bool = False) -> dict[str, Tuned]:
    """Return each attention at its best rate, the best first by `chosen_by`. If `higher`, larger values are better.

    Of rates that are equally good it is the one with more seeds.
    """
    sign = 1 if higher else -1
    result: dict[str, Tuned] = {}
    by_name = group(found, lambda d: d.settings["attention"])
    for attention in sorted(by_name, key=lambda name: name != "softmax"):  # gaps need softmax first
        first = {d.settings["lr"]: chosen_by(d) for d in by_name[attention] if d.settings["seed"] == 0}
        if not first:  # its rate is not chosen yet
            continue
        seeds = Counter(d.settings["lr"] for d in by_name[attention])
        rate = max(first, key=lambda lr: (sign * first[lr], seeds[lr]))
        own = {d.settings["seed"]: d for d in by_name[attention] if d.settings["lr"] == rate}
        values = {seed: value(d) for seed, d in own.items()}
        softmax = values if attention == "softmax" else result["softmax"].values if "softmax" in result else {}
        chosen = {seed: chosen_by(d) for seed, d in own.items()}
        result[attention] = Tuned(attention, rate, tuple(sorted(first)), values, chosen, gap(values, softmax))
    ordered = sorted(result.values(), key=lambda one: spread(list(one.chosen.values()))[0], reverse=higher)
    return {one.attention: one for one in ordered}


def compared(
    runs: dict[str, Tuned], name: str, title: str, unit: str, *, decimals: int, chosen_unit: str = ""
) -> Table:
    """Return a row for each attention. The values that chose the rates have columns if they have a unit."""
    rows: list[tuple[Any, ...]] = []
    for one in runs.values():
        gaps = (None, None) if one.gap is None else (one.gap.mean, one.gap.error)
        own = spread(list(one.chosen.values())) if chosen_unit else ()
        rows.append(
            (one.attention, one.rate, *spread(list(one.values.values())), *gaps, len(one.values), len(one.rates), *own)
        )
    columns = ("attention", "learning rate", unit, "±", "gap to softmax", "its standard error", "seeds", "rates tried")
    more = (chosen_unit, "± ") if chosen_unit else ()
    shape = f".{decimals}f"
    formats = ("", "g", shape, shape, f"+{shape}", shape, "", "", shape, shape)
    return Table(name, title, (*columns, *more), tuple(rows), formats)


def dots(table: Table) -> tuple[Series, ...]:
    """Draw the rows of `compared`, each attention in its style, with the spread."""
    return tuple(Series(row[0], (row[2],), (place,), (row[3],)) for place, row in enumerate(table.rows))


def edges(runs: dict[str, Tuned]) -> str:
    """Name the attentions whose best rate is at an end of those that were tried; "" if there are none."""
    parts = []
    for edge in ("highest", "lowest"):
        names = [name for name, one in runs.items() if one.edge == edge]
        if names:
            parts.append(f"The {edge} rate that was tried is the best for: {'; '.join(names)}.")
    return f"{' '.join(parts)} A better one may lie beyond it." if parts else ""
