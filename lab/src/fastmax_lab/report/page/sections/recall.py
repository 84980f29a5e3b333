"""Recall: the accuracy of naming the value that came with a key."""

from collections.abc import Hashable

from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page.parts import Chart, Finding, PageBlock, Section, Series, Table
from fastmax_lab.report.page.results import Results, group, spread
from fastmax_lab.report.page.words import listed

NAME = "recall"
TITLE = "Recall (ours)"
SOLVED = 0.99
FALL = 10.0
"""Points of accuracy from which a fall is named."""


def section(results: Results) -> Section:
    measurements = results.get(NAME, [])
    if not measurements:
        return Section(NAME, TITLE)
    s = measurements[0].settings
    intro = (
        "Pairs of a key and a value, then the keys again in another order: the model has to name the values. "
        f"{s['names']} names of keys and of values, two layers with a "
        f"short convolution, learned positions, up to {s['steps']} steps, stopped at 99.5 %. fastmax1 "
        f"has the scale 1/D, fastmax2 1/√D. {_seeds(measurements)} Lines may cover one another; the table has all numbers."
    )
    near = [d for d in measurements if not d.settings["filler"]]
    charts = tuple(chart(found, d) for d, found in sorted(group(near, _head_dim).items()))
    text = found_by_heads(near) if near else ""
    findings = (Finding(f"{text}. The paper has no such experiment." if text else ""), Finding(falls(near)))
    block = PageBlock("", charts, findings, (table(measurements),))
    return Section(NAME, TITLE, intro, (block,), (), f"recall: {text}" if text else "")


def _seeds(measurements: list[Measurement]) -> str:
    """Describe how many settings have a second seed."""
    runs = group(measurements, _but_for_the_seed)
    several = sum(len(found) > 1 for found in runs.values())
    return f"{several} of {len(runs)} settings have a second seed, the others one." if several else "All have one seed."


def _but_for_the_seed(measurement: Measurement) -> Hashable:
    return tuple((name, str(value)) for name, value in measurement.settings.items() if name != "seed")


def falls(measurements: list[Measurement]) -> str:
    """Name the attentions that recall clearly less with larger heads, whose state holds more; "" if there are none."""
    parts = []
    for (name, pairs), found in group(measurements, lambda d: (d.settings["attention"], d.settings["pairs"])).items():
        means = {size: spread([_accuracy(d) for d in own])[0] for size, own in group(found, _head_dim).items()}
        small, large = min(means), max(means)
        if means[large] < means[small] - FALL:
            shown = f"from {means[small]:.1f} to {means[large]:.1f} % of {pairs} pairs"
            parts.append(f"{name} falls {shown} with the larger heads")
    return ". ".join(parts)


def _accuracy(measurement: Measurement) -> float:
    return float(100 * measurement.values["accuracy"])


def found_by_heads(measurements: list[Measurement]) -> str:
    """Name the attentions that recall the most pairs, by head dimension: a state of small heads holds less."""
    most = max(_pairs(measurements))
    parts = []
    for head_dim, found in sorted(group(measurements, _head_dim).items()):
        runs = group((d for d in found if d.settings["pairs"] == most), lambda d: d.settings["attention"])
        if runs:
            solved = [name for name, of in runs.items() if all(d.values["accuracy"] >= SOLVED for d in of)]
            parts.append(f"with heads of {head_dim} by {listed(sorted(solved)) if solved else 'none'}")
    return f"Almost all of {most} pairs are recalled {'; '.join(parts)}"


def _head_dim(measurement: Measurement) -> int:
    s = measurement.settings
    return int(s["width"] // s["heads"])


def _pairs(measurements: list[Measurement]) -> set[int]:
    return {d.settings["pairs"] for d in measurements}


def chart(measurements: list[Measurement], head_dim: int) -> Chart:
    """Draw accuracy by the number of pairs. Gates that start with other reaches than the first are in the table only."""
    series = []
    for name, found in group(measurements, lambda d: d.settings["attention"]).items():
        memory = next(
            (d.settings["memory"] for d in found if d.settings["memory"] == [2.0, 12.0]),
            found[0].settings["memory"],
        )
        points = []
        for pairs in sorted(_pairs(found)):
            values = [_accuracy(d) for d in found if d.settings["pairs"] == pairs and d.settings["memory"] == memory]
            if values:
                points.append((pairs, *spread(values)))
        x, y, deviation = zip(*points, strict=True)
        series.append(Series(name, x, y, deviation, dashed=name.endswith("gated")))  # often on the line of fastmax2
    return Chart(
        f"recall-d{head_dim}",
        f"heads of {head_dim}",
        "pairs",
        "accuracy, %",
        tuple(series),
        x_log=True,
        x_base=2,
    )


def table(measurements: list[Measurement]) -> Table:
    rows = []
    for d in measurements:
        s, r = d.settings, d.values
        reach = None if r["reach"] is None else "; ".join(" ".join(f"{x:g}" for x in layer) for layer in r["reach"])
        start = f"{s['memory'][0]:g} to {s['memory'][1]:g}" if s["attention"].endswith("gated") else None
        rows.append(
            (
                s["attention"],
                start,
                s["pairs"],
                s["filler"],
                _head_dim(d),
                s["seed"],
                _accuracy(d),
                r["steps_done"],
                reach,
            )
        )
    columns = (
        "attention",
        "memory at the start, 2^m",
        "pairs",
        "filler",
        "D",
        "seed",
        "accuracy, %",
        "steps",
        "reach in tokens, layer; layer",
    )
    return Table("recall", "Every run", columns, tuple(rows), ("", "", "", "", "", "", ".1f", ","))
