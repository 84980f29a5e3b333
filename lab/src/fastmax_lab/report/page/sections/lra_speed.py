"""Long Range Arena: training steps per second and memory (Table 2), and speed against accuracy (Figure 5)."""

from collections.abc import Callable
from dataclasses import replace
from statistics import geometric_mean, mean
from typing import Any, NamedTuple

from fastmax_lab.lra import paper
from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page.parts import (
    AGREES,
    DIFFERS,
    OPEN,
    PARTLY,
    Chart,
    Claim,
    Finding,
    PageBlock,
    Section,
    Series,
    Table,
    untested,
)
from fastmax_lab.report.page.results import Results, group
from fastmax_lab.report.page.sections import lra_time
from fastmax_lab.report.page.sections.lra_runs import at_chance, dev_accuracy, test_accuracy
from fastmax_lab.report.page.tuned import tuned
from fastmax_lab.report.page.words import listed, times

NAME = "lra-speed"
TITLE = "Long Range Arena: speed and memory (Table 2, Figure 5)"
FASTER = ("Table 2", "Fastmax2 trains 3.4 times as fast as softmax on Text, Fastmax1 14.8 times.")
WANTED = {"fastmax1": 14.8, "fastmax2": 3.4}
Of = Callable[[Measurement, str], float | None]


class Point(NamedTuple):
    """One attention on one task: steps per second over those of the plain formula, accuracy in per cent, memory in MiB."""

    speed: float
    accuracy: float
    memory: float


class Trained(NamedTuple):
    """The attentions of a task that were trained for as many `steps`."""

    steps: int
    points: dict[str, Point]


def section(results: Results) -> Section:
    measurements = results.get(NAME, [])
    if not measurements:
        return Section(NAME, TITLE, claims=(untested(*FASTER),))
    intro = (
        "Whole training steps (forward, backward, update) of the preset at full length, random "
        "tokens, fp32, contestants in turns, median of the rounds. vanilla is softmax by the "
        "plain formula, which is what the paper timed, on a GPU. Ratios to it can be compared. In the trainings for "
        "accuracy, whose batches of Text and ListOps leave padding out, sequences are shorter and all ratios smaller."
    )
    blocks = []
    for rate, found in sorted(group(measurements, lambda d: d.settings["attention_dropout"]).items()):
        kind = f"attention dropout {rate:g}"
        blocks.append(
            PageBlock(
                kind[0].upper() + kind[1:],
                (),
                (_finding(found),),
                (speeds(found, rate), ratios(found, rate), memory(found, rate)),
            )
        )
    circles = [*mean_gap(results), *speed_accuracy(results)]
    if circles:
        said = (
            "Speed without attention dropout; accuracy of the runs of equal steps that most attentions have. "
            "Runs at chance level are left out. The area of a circle is in proportion "
            "to the peak memory of a step. vanilla has the accuracy of softmax, which is the same function. Tasks of unequal "
            "steps have no mean; the mean of gaps is that of the short sequences at tuned rates, over three seeds."
        )
        blocks.append(
            PageBlock("Speed against accuracy; the area of a circle is memory", tuple(circles), (Finding(said),))
        )
    blocks += _layers(results.get("lra-layers", []))
    claim = _claim(measurements)
    return Section(
        NAME, TITLE, intro, tuple(blocks), (claim,), f"speed: on Text, over the plain formula, {claim.number}"
    )


def _layers(measurements: list[Measurement]) -> list[PageBlock]:
    """Return what the encoder's linear layers cost, by who multiplies them."""
    rows = []
    for d in measurements:
        took = {tuple(name.split("; ")): t["median"] for name, t in d.values["seconds"].items()}
        for name in d.settings["attentions"]:
            own = [took[name, kind] for kind in d.settings["layers"]]
            rows.append((d.settings["threads"], name, *(1e3 * x for x in own), *(own[0] / x for x in own[1:])))
    if not rows:
        return []
    kinds = measurements[0].settings["layers"]
    columns = (
        "threads",
        "attention",
        *(f"{kind}, ms" for kind in kinds),
        *(f"{kind}, times as fast" for kind in kinds[1:]),
    )
    title = f"A training step of {measurements[0].settings['task']} without dropout, by the encoder's linear layers"
    formats = ("", "", *(".1f",) * len(kinds), *(".2f",) * (len(kinds) - 1))
    return [
        PageBlock(
            "The encoder's layers", (), (), (Table("lra-layers", title, columns, tuple(rows), formats, folded=False),)
        )
    ]


def ratio(measurement: Measurement, name: str, to: str = "vanilla") -> float | None:
    """Return how many times as long the other takes, by the medians."""
    took = {n: t["median"] for n, t in measurement.values["seconds"].items()}
    return float(took[to] / took[name]) if name in took and to in took else None


def bytes_of(measurement: Measurement, name: str) -> float | None:
    found = measurement.values["bytes"].get(name)
    return None if found is None else (found["peak"] - found["before"]) / 2**20


def _names(measurements: list[Measurement]) -> list[str]:
    return [name for name in dict.fromkeys(n for d in measurements for n in d.values["seconds"]) if name != "data"]


def _steps_per_second(measurement: Measurement, name: str) -> float | None:
    timed = measurement.values["seconds"].get(name)
    return None if timed is None else 1 / timed["median"]


def _beside_the_papers(measurements: list[Measurement], ours: Of, theirs: Of) -> tuple[tuple[Any, ...], ...]:
    """Return a row for each attention: of each task ours and the paper's, and the means where no task is missing."""
    rows = []
    for name in _names(measurements):
        pairs = [(ours(d, name), theirs(d, name)) for d in measurements]
        means = [None if None in column else mean(column) for column in zip(*pairs, strict=True)]
        rows.append((name, *(cell for pair in pairs for cell in pair), *means))
    return tuple(rows)


def speeds(measurements: list[Measurement], rate: float) -> Table:
    """Return Table 2 of the paper."""
    heads = [*(d.settings["task"] for d in measurements), "mean"]
    return Table(
        f"lra-speed-{rate:g}",
        f"Training steps per second, and the paper's, on its GPU; attention dropout {rate:g}",
        ("attention", *(f"{head}{what}" for head in heads for what in (", steps/s", ", paper"))),
        _beside_the_papers(measurements, _steps_per_second, lambda d, name: paper.speed(name, d.settings["task"])),
        ("", *(".2f", ".1f") * len(heads)),
    )


def ratios(measurements: list[Measurement], rate: float) -> Table:
    heads = [*(d.settings["task"] for d in measurements), "mean"]
    return Table(
        f"lra-ratio-{rate:g}",
        f"Steps per second over those of softmax by the plain formula, and the paper's; attention dropout {rate:g}",
        ("attention", *(f"{head}{what}" for head in heads for what in (", × vanilla", ", paper ×"))),
        _beside_the_papers(measurements, ratio, lambda d, name: paper.speed_ratio(name, d.settings["task"])),
        ("", *(".1f", ".1f") * len(heads)),
    )


def memory(measurements: list[Measurement], rate: float) -> Table:
    rows = tuple((name, *(bytes_of(d, name) for d in measurements)) for name in _names(measurements))
    columns = ("attention", *(f"{d.settings['task']}, MiB" for d in measurements))
    return Table(
        f"lra-memory-{rate:g}",
        f"Peak memory of a training step, attention dropout {rate:g}",
        columns,
        rows,
        ("", *(",.0f" for _ in measurements)),
    )


def _finding(measurements: list[Measurement]) -> Finding:
    pairs = [
        (ratio(d, name), paper.speed_ratio(name, d.settings["task"])) for d in measurements for name in WANTED
    ]  # fmt: skip
    ahead = [ours >= theirs for ours, theirs in pairs if ours is not None and theirs is not None]
    if not ahead:
        return Finding("The plain formula was not timed.")
    rate = measurements[0].settings["attention_dropout"]
    cases = f"{sum(ahead)} of {len(ahead)} cases"
    return Finding(
        f"With attention dropout {rate:g} Fastmax reaches the paper's ratio to the plain formula in {cases}."
    )


def _verdict(reached: list[bool]) -> str:
    return OPEN if not reached else AGREES if all(reached) else PARTLY if any(reached) else DIFFERS


def _claim(measurements: list[Measurement]) -> Claim:
    """Judge the ratios on Text, with every rate of dropout that was timed."""
    text = [d for d in measurements if d.settings["task"] == "text" and "vanilla" in d.values["seconds"]]
    if not text:
        return untested(*FASTER, "Text was not timed in this folder")
    reached = [found >= WANTED[name] for d in text for name in WANTED if (found := ratio(d, name)) is not None]
    first = min(text, key=lambda one: one.settings["attention_dropout"])
    plain, kernel = (_both(first, to) for to in ("vanilla", "softmax"))
    notes = (f"Over PyTorch's own softmax kernel: {kernel}.",) if kernel else ()
    return Claim(*FASTER, _verdict(reached), plain, notes, f"lra-ratio-{first.settings['attention_dropout']:g}")


def _both(measurement: Measurement, to: str) -> str:
    found = {name: ratio(measurement, name, to) for name in reversed(WANTED)}
    return listed([f"{name} {times(one)}" for name, one in found.items() if one is not None] or [""])


def speed_accuracy(results: Results) -> list[Chart]:
    """Draw each task with the attentions that have both, and means over tasks if their steps are equal."""
    timed = {d.settings["task"]: d for d in results.get(NAME, []) if not d.settings["attention_dropout"]}
    found = {
        task: _trained(runs, timed[task])
        for task, runs in group(results.get("lra", []), lambda d: d.settings["task"]).items()
        if task in timed
    }
    tasks = {task: of for task, of in found.items() if of is not None}
    charts = [
        _circles(f"lra-speed-accuracy-{task}", f"{task}, {of.steps:,} steps", of.points) for task, of in tasks.items()
    ]
    every = list(tasks.values())
    means = {
        name: Point(*map(mean, zip(*(of.points[name] for of in every), strict=True)))
        for name in (every[0].points if every else ())
        if all(name in of.points for of in every)
    }
    if len(every) > 1 and means and len({of.steps for of in every}) == 1:
        charts.append(_circles("lra-speed-accuracy", f"means over {listed(list(tasks))}", means))
    return charts


def mean_gap(results: Results) -> list[Chart]:
    """Draw the mean gap to softmax over the tasks with tuned rates, against the mean speed on the same tasks."""
    timed = {d.settings["task"]: d for d in results.get(NAME, []) if not d.settings["attention_dropout"]}
    found = group(results.get("lra-settings", []), lambda d: str(d.settings["task"]))
    runs = {task: tuned(of, test_accuracy, dev_accuracy, higher=True) for task, of in found.items() if task in timed}
    if len(runs) < 2:
        return []
    points = {}
    for name in next(iter(runs.values())):
        for shown, kernel in lra_time.kernels(name).items():
            gaps = [of[name].gap for of in runs.values() if name in of]
            speeds = [ratio(timed[task], kernel) for task in runs]
            used = [bytes_of(timed[task], kernel) for task in runs]
            far, fast, held = [x.mean for x in gaps if x], [x for x in speeds if x], [x for x in used if x is not None]
            if len(far) == len(fast) == len(held) == len(runs):
                label = kernel if shown == lra_time.PLAIN else shown
                points[label] = Point(geometric_mean(fast), mean(far), mean(held))
    title = f"means over {listed(list(runs))}, rates tuned"
    drawn = _circles("lra-speed-gap", title, points) if points else None
    return [] if drawn is None else [replace(drawn, y_label="test accuracy less softmax's, points")]


def _trained(runs: list[Measurement], timed: Measurement) -> Trained | None:
    """Return the longest runs of equal steps that most of the timed attentions have.

    There are none if all are at chance level, or if there is nothing to compare.
    """
    best, most = None, 1
    firsts = [d for d in runs if not d.settings["seed"]]
    for steps, found in sorted(group(firsts, lambda d: int(d.settings["steps"])).items(), reverse=True):
        if all(at_chance(d) for d in found):  # what differs there is noise
            continue
        points = {}
        for d in (d for d in found if not at_chance(d)):
            for shown, kernel in lra_time.kernels(d.settings["attention"]).items():
                speed, used = ratio(timed, kernel), bytes_of(timed, kernel)
                if speed is not None and used is not None:
                    label = kernel if shown == lra_time.PLAIN else shown
                    points[label] = Point(speed, 100 * d.values["test"]["accuracy"], used)
        count = len(points.keys() - {"vanilla"})  # which is softmax once more
        if count > most:
            best, most = Trained(steps, points), count
    return best


def _circles(name: str, title: str, points: dict[str, Point]) -> Chart:
    largest = max(point.memory for point in points.values())
    series = tuple(Series(label, (of.speed,), (of.accuracy,), area=(of.memory,)) for label, of in points.items())
    title += f"; the largest circle is {largest:,.0f} MiB"
    return Chart(name, title, "steps per second over the plain formula's", "test accuracy, %", series, x_log=True)
