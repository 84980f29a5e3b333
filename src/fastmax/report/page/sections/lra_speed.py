"""Long Range Arena: training steps per second and memory (Table 2), and speed against accuracy (Figure 5)."""

from statistics import mean
from typing import Any

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
from fastmax.report.page.words import listed, times

NAME = "lra-speed"
TITLE = "Long Range Arena: speed and memory (Table 2, Figure 5)"
FASTER = ("Table 2", "Fastmax2 trains 3.4 times as fast as softmax on Text, Fastmax1 14.8 times.")
WANTED = {"fastmax1": 14.8, "fastmax2": 3.4}


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
    scatter = speed_accuracy(results)
    if scatter is not None:
        blocks.append(
            Block(
                "Speed against accuracy; the area of a circle is memory",
                (scatter,),
                (
                    Finding(
                        "Means over the tasks that have both a speed and an accuracy in this folder; areas are "
                        "in proportion to peak memory."
                    ),
                ),
            )
        )
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


def speed_accuracy(results: Results) -> Chart | None:
    """Of attentions that have both for the same tasks; memory of the largest is 900 points of area."""
    accuracy = {
        (d["settings"]["task"], d["settings"]["attention"]): 100 * d["result"]["test"]["accuracy"]
        for d in sorted(
            results.get("lra", []), key=lambda d: -d["settings"]["steps"]
        )  # the shorter, which all have, win
        if d["settings"]["seed"] == 0
    }
    speed = {
        (d["settings"]["task"], name): d
        for d in results.get(NAME, [])
        if not d["settings"]["attention_dropout"]
        for name in d["result"]["seconds"]
    }
    both = [key for key in accuracy if key in speed]
    tasks = sorted({task for task, _ in both})
    names = [n for n in dict.fromkeys(name for _, name in both) if all((task, n) in both for task in tasks)]
    points = []
    for name in names:
        used = [bytes_of(speed[task, name], name) for task in tasks]
        ratios = [ratio(speed[task, name], name) for task in tasks]
        known = [m for m in used if m is not None], [r for r in ratios if r is not None]
        if len(known[0]) == len(known[1]) == len(tasks):
            points.append((name, mean(known[1]), mean(accuracy[task, name] for task in tasks), mean(known[0])))
    if not points:
        return None
    largest = max(point[3] for point in points)
    series = tuple(Series(name, (x,), (y,), area=(max(900 * m / largest, 12),)) for name, x, y, m in points)
    return Chart(
        "lra-speed-accuracy",
        f"Means over {listed(tasks)}",
        "steps per second over the plain formula's",
        "test accuracy, %",
        series,
        x_log=True,
    )
