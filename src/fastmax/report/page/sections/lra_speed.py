"""Long Range Arena: training steps per second and memory (Table 2), and speed against accuracy (Figure 5)."""

from statistics import mean
from typing import Any, NamedTuple

from fastmax.lra import paper
from fastmax.report.page.documents import Document, Results, group
from fastmax.report.page.parts import (
    AGREES,
    DIFFERS,
    PARTLY,
    Block,
    Chart,
    Claim,
    Finding,
    Section,
    Series,
    Table,
    untested,
)
from fastmax.report.page.sections import lra_time
from fastmax.report.page.sections.lra import at_chance
from fastmax.report.page.words import listed, times

NAME = "lra-speed"
TITLE = "Long Range Arena: speed and memory (Table 2, Figure 5)"
FASTER = ("Table 2", "Fastmax2 trains 3.4 times as fast as softmax on Text, Fastmax1 14.8 times.")
WANTED = {"fastmax1": 14.8, "fastmax2": 3.4}


class Point(NamedTuple):
    """`speed` in steps per second over those of the plain formula, `accuracy` in per cent, `memory` in MiB."""

    speed: float
    accuracy: float
    memory: float


def section(results: Results) -> Section:
    documents = results.get(NAME, [])
    if not documents:
        return Section(NAME, TITLE, claims=(untested(*FASTER),))
    intro = (
        "Whole training steps (forward, backward, update) of the preset at full length, random "
        "tokens, fp32, contestants in turns, best of the rounds. vanilla is softmax by the "
        "plain formula, which is what the paper timed, on a GPU; ratios to it are what can be compared."
    )
    blocks = []
    for rate, found in sorted(group(documents, lambda d: d["settings"]["attention_dropout"]).items()):
        kind = f"attention dropout {rate:g}"
        blocks.append(
            Block(kind[0].upper() + kind[1:], (), (_finding(found),), (speeds(found, rate), memory(found, rate)))
        )
    circles = speed_accuracy(results)
    if circles:
        said = (
            "Speed without attention dropout; accuracy of runs of equal steps within a task, where any of them has "
            "learned something. The area of a circle is in proportion to the peak memory of a step."
        )
        blocks.append(Block("Speed against accuracy; the area of a circle is memory", tuple(circles), (Finding(said),)))
    claim = _claim(documents)
    return Section(NAME, TITLE, intro, tuple(blocks), (claim,), f"speed: {claim.evidence}")


def ratio(document: Document, name: str, to: str = "vanilla") -> float | None:
    best = {n: t["best"] for n, t in document["result"]["seconds"].items()}
    return float(best[to] / best[name]) if name in best and to in best else None


def bytes_of(document: Document, name: str) -> float | None:
    found = document["result"]["bytes"].get(name)
    return None if found is None else (found["peak"] - found["before"]) / 2**20


def speeds(documents: list[Document], rate: float) -> Table:
    tasks = [d["settings"]["task"] for d in documents]
    names = [n for n in documents[0]["result"]["seconds"] if n != "data"]
    rows = []
    for name in names:
        cells: list[Any] = []
        for d in documents:
            cells += [
                1 / d["result"]["seconds"][name]["best"],
                ratio(d, name),
                paper.speed_ratio(name, d["settings"]["task"]),
            ]
        rows.append((name, *cells))
    columns = ("attention", *(f"{task}, {what}" for task in tasks for what in ("steps/s", "× vanilla", "paper ×")))
    return Table(
        f"lra-speed-{rate:g}",
        f"Steps per second, and their ratio to softmax by the plain formula, attention dropout {rate:g}",
        columns,
        tuple(rows),
        ("", *(".2f", ".1f", ".1f") * len(tasks)),
    )


def memory(documents: list[Document], rate: float) -> Table:
    names = [n for n in documents[0]["result"]["seconds"] if n != "data"]
    rows = tuple((name, *(bytes_of(d, name) for d in documents)) for name in names)
    columns = ("attention", *(f"{d['settings']['task']}, MiB" for d in documents))
    return Table(
        f"lra-memory-{rate:g}",
        f"Peak memory of a training step, attention dropout {rate:g}",
        columns,
        rows,
        ("", *(",.0f" for _ in documents)),
    )


def _finding(documents: list[Document]) -> Finding:
    parts, ahead = [], []
    for d in documents:
        task = d["settings"]["task"]
        for name in ("fastmax2", "fastmax1"):
            ours, theirs = ratio(d, name), paper.speed_ratio(name, task)
            if ours is not None and theirs is not None:
                parts.append(f"{name} on {task} {times(ours)} (paper {times(theirs)})")
                ahead.append(ours >= theirs)
    verdict = AGREES if all(ahead) else PARTLY if any(ahead) else DIFFERS
    return Finding(f"Against the plain formula: {'; '.join(parts)}.", verdict)


def _claim(documents: list[Document]) -> Claim:
    text = [d for d in documents if d["settings"]["task"] == "text"]
    if not text:
        return untested(*FASTER, "Text was not timed in this folder")
    d = max(text, key=lambda one: one["settings"]["attention_dropout"])
    found = {name: ratio(d, name) for name in WANTED}
    ok = [value is not None and value >= WANTED[name] for name, value in found.items()]
    said = listed([f"{name} {times(value)}" for name, value in found.items()])
    evidence = (
        f"on Text (N = {d['result']['tokens']:,}, attention dropout {d['settings']['attention_dropout']:g}) "
        f"training steps per second over those of the plain formula: {said}"
    )
    return Claim(*FASTER, AGREES if all(ok) else PARTLY if any(ok) else DIFFERS, evidence)


def speed_accuracy(results: Results) -> list[Chart]:
    """A chart for each task, of the attentions that have both; and the means of those that have them for every task."""
    timed = {d["settings"]["task"]: d for d in results.get(NAME, []) if not d["settings"]["attention_dropout"]}
    points = {
        task: _points(found, timed[task])
        for task, found in group(results.get("lra", []), lambda d: d["settings"]["task"]).items()
        if task in timed
    }
    points = {task: of for task, of in points.items() if len(of) > 1}
    charts = [_circles(f"lra-speed-accuracy-{task}", task, of) for task, of in points.items()]
    every = list(points.values())
    means = {
        name: Point(*map(mean, zip(*(of[name] for of in every), strict=True)))
        for name in (every[0] if every else ())
        if all(name in of for of in every)
    }
    if len(every) > 1 and means:
        charts.append(_circles("lra-speed-accuracy", f"means over {listed(list(points))}", means))
    return charts


def _points(trained: list[Document], timed: Document) -> dict[str, Point]:
    """Of the runs of equal steps that most of the timed attentions have, and of these the longest."""
    best: dict[str, Point] = {}
    firsts = [d for d in trained if not d["settings"]["seed"]]
    for _, runs in sorted(group(firsts, lambda d: d["settings"]["steps"]).items(), reverse=True):
        if all(at_chance(d) for d in runs):  # what differs there is noise
            continue
        found = {}
        for d in runs:
            name = d["settings"]["attention"]
            kernel = lra_time.kernels(name)[name]
            speed, used = ratio(timed, kernel), bytes_of(timed, kernel)
            if speed is not None and used is not None:
                found[name] = Point(speed, 100 * d["result"]["test"]["accuracy"], used)
        best = found if len(found) > len(best) else best
    return best


def _circles(name: str, title: str, points: dict[str, Point]) -> Chart:
    """The largest has 900 points of area."""
    largest = max(point.memory for point in points.values())
    series = tuple(
        Series(label, (of.speed,), (of.accuracy,), area=(max(900 * of.memory / largest, 12),))
        for label, of in points.items()
    )
    return Chart(name, title, "steps per second over the plain formula's", "test accuracy, %", series, x_log=True)
