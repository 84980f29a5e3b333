"""Recall from afar: the accuracy by how far back an answer stands, and by what a model keeps of the past."""

from collections.abc import Sequence
from typing import Any

from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page.parts import Chart, Finding, PageBlock, Section, Series, Table
from fastmax_lab.report.page.results import Results, group, spread
from fastmax_lab.report.page.words import listed

NAME = "recall-far"
TITLE = "Recall from afar (ours)"
SOLVED = 0.99
REFERENCE = "softmax"
DRAWN = ("softmax", "fastmax2", "fastmax2, gated", "linear, gated", "window")
"""Recipes with a line in the chart by distance, beside the best of the others."""


def section(results: Results) -> Section:
    """Draw a block per task, the longest first; the table of every run is folded."""
    measurements = results.get(NAME, [])
    if not measurements:
        return Section(NAME, TITLE)
    s = measurements[0].settings
    intro = (
        "Pairs of a key and a value stand among noise in the first quarter of a text, questions for the values everywhere "
        f"after it. Models of {s['layers']} layers and {s['width']} channels, with a convolution over "
        "four tokens before each attention, train on short texts, and on texts of twice the "
        "length whenever they answer right, up to the length of the task; all have the same steps and tokens. Rates were "
        "tuned at 512 tokens. A model that never answers right stays at short texts, and is tested at the whole length "
        "all the same. Distances are the tokens between answer and question, state is what a model keeps of a text while "
        "it decodes."
    )
    tasks = sorted(group(measurements, _task).items(), key=lambda item: item[0], reverse=True)
    blocks = tuple(_block(task, chosen(own)) for task, own in tasks)
    found = _finding(chosen(tasks[0][1]))
    return Section(NAME, TITLE, intro, (*blocks, _every(measurements)), (), f"recall-far: {found}")


def _task(measurement: Measurement) -> tuple[int, int, int]:
    s = measurement.settings
    return s["length"], s["pairs"], s["distractors"]


def chosen(measurements: Sequence[Measurement]) -> dict[str, list[Measurement]]:
    """Return the runs of each recipe at its best rate, by accuracy and then by the number of seeds."""
    result = {}
    for name, own in group(measurements, lambda d: d.settings["recipe"]).items():
        rates = group(own, lambda d: d.settings["lr"]).values()
        result[name] = max(rates, key=lambda runs: (len(runs), spread([_accuracy(d) for d in runs])[0]))
    return result


def _accuracy(measurement: Measurement) -> float:
    return float(100 * measurement.values["accuracy"])


def _finding(runs: dict[str, list[Measurement]]) -> str:
    """Name the recipes that answer right in every run, and what they keep."""
    s = next(iter(runs.values()))[0].settings
    right = [name for name, own in runs.items() if all(d.values["accuracy"] >= SOLVED for d in own)]
    constant = [name for name in right if not name.startswith(REFERENCE)]
    text = (
        f"{s['pairs']} pairs among {s['length']:,} tokens are recalled by {listed(sorted(right)) if right else 'none'}"
    )
    if REFERENCE in runs and REFERENCE not in right:
        text += "; softmax does not learn it in these steps, so the task decides nothing"
    elif right and not constant:
        text += ", none in constant memory"
    return text


def _block(task: tuple[int, int, int], runs: dict[str, list[Measurement]]) -> PageBlock:
    length, pairs, distractors = task
    name = f"recall-far-{length}-{pairs}" + (f"-{distractors}" if distractors else "")
    title = f"{pairs} pairs among {length:,} tokens" + (f", {distractors} more never asked for" if distractors else "")
    ordered = dict(sorted(runs.items(), key=lambda item: -_mean(item[1])))
    others = [label for label in ordered if label not in DRAWN]
    drawn = [*(label for label in DRAWN if label in runs), *others[:1]]
    kinds: dict[str, list[list[Measurement]]] = {}
    for label, own in runs.items():
        kinds.setdefault(label.partition(",")[0], []).append(own)
    charts = (
        Chart(f"{name}-accuracy", title, "accuracy, %", "", _dots(ordered), categories=tuple(ordered)),
        Chart(
            f"{name}-distance",
            f"{title}, by distance",
            "distance in tokens, from",
            "accuracy, %",
            tuple(_by_distance(label, runs[label]) for label in drawn),
            x_log=True,
            x_base=2,
        ),
        Chart(
            f"{name}-state",
            f"{title}, by state",
            "numbers of the state",
            "accuracy, %",
            tuple(_by_state(kind, found) for kind, found in kinds.items()),
            x_log=True,
            x_base=2,
        ),
    )
    return PageBlock(title, charts, (Finding(_finding(runs)),), (_table(name, title, ordered),), columns=1)


def _mean(runs: list[Measurement]) -> float:
    return spread([_accuracy(d) for d in runs])[0]


def _dots(runs: dict[str, list[Measurement]]) -> tuple[Series, ...]:
    points = {name: spread([_accuracy(d) for d in own]) for name, own in runs.items()}
    return tuple(Series(name, (y,), (at,), (off,)) for at, (name, (y, off)) in enumerate(points.items()))


def _by_distance(label: str, runs: list[Measurement]) -> Series:
    """Draw distances of which every run has questions."""
    parts: list[dict[str, Any]] = [d.values["by_distance"] for d in runs]
    shown = sorted({int(at) for at in parts[0]}.intersection(*({int(at) for at in part} for part in parts)))
    points = [spread([100 * part[str(at)][0] for part in parts]) for at in shown]
    return Series(label, tuple(shown), tuple(y for y, _ in points), tuple(deviation for _, deviation in points))


def _by_state(kind: str, recipes: list[list[Measurement]]) -> Series:
    """Draw a point for each recipe of a kind."""
    states = tuple(own[0].values["state"] for own in recipes)
    return Series(kind, states, tuple(_mean(own) for own in recipes), line=False)


def _table(name: str, title: str, runs: dict[str, list[Measurement]]) -> Table:
    rows = []
    for label, own in runs.items():
        y, deviation = spread([_accuracy(d) for d in own])
        v = own[0].values
        reached = min(d.values["length_reached"] for d in own)
        steps = spread([d.values["steps_done"] for d in own])[0]
        rows.append((label, own[0].settings["lr"], len(own), y, deviation, reached, steps, v["state"], v["parameters"]))
    columns = ("recipe", "rate", "seeds", "accuracy, %", "±", "length reached", "steps", "state", "parameters")
    return Table(name, title, columns, tuple(rows), ("", "g", "", ".1f", ".1f", ",", ",.0f", ",", ","))


def _every(measurements: list[Measurement]) -> PageBlock:
    rows = []
    for d in measurements:
        s, v = d.settings, d.values
        task = s["length"], s["pairs"], s["distractors"], s["recipe"], s["lr"], s["seed"]
        rows.append((*task, _accuracy(d), v["length_reached"], v["steps_done"], v["seconds"]))
    columns = (
        "length", "pairs", "distractors", "recipe", "rate", "seed", "accuracy, %", "length reached", "steps", "seconds",
    )  # fmt: skip
    formats = (",", "", "", "", "g", "", ".1f", ",", ",", ",.0f")
    return PageBlock("Every run", tables=(Table("recall-far-runs", "Every run", columns, tuple(rows), formats),))
