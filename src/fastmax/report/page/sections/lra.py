"""Long Range Arena: accuracy (Table 1), loss curves and accuracy at equal time (Figure 6)."""

from statistics import mean
from typing import Any

from fastmax.lra import paper
from fastmax.lra.tasks import names as task_names
from fastmax.report.page.documents import Document, Results, group, spread
from fastmax.report.page.parts import (
    AGREES,
    DIFFERS,
    OPEN,
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
from fastmax.report.page.words import listed

NAME = "lra"
TITLE = "Long Range Arena: accuracy and loss curves (Table 1, Figure 6)"
EQUAL = (
    "Table 1",
    "Fastmax reaches the accuracy of softmax on the Long Range Arena (57.90 and 57.62 against 57.37 on average).",
)
STEPS = ("Figure 6", "Measured by steps, softmax converges at the same speed as Fastmax1 or faster.")
CLOCK = ("Figure 6", "Measured by wall clock, Fastmax1 converges much faster than softmax.")
CURVES = ("softmax", "fastmax1", "fastmax2", "fastmax2, decay")
ENOUGH = 1000
"""Steps below which accuracies are shown but decide nothing."""
WINDOW = 10
"""Points of the training loss, each of a single batch, that are averaged to one of the curve."""


OFFICIAL_RETRIEVAL = 147_086
"""Training pairs of the benchmark's own release."""


def section(results: Results) -> Section:
    every = results.get(NAME, [])
    if not every:
        return Section(NAME, TITLE, claims=(untested(*EQUAL), untested(*STEPS), untested(*CLOCK)))
    documents, short = _longest(every)
    pace = results.get("lra-pace", [])
    time = equal_time(documents, pace)
    equal = _equal(documents)
    by_steps, by_clock = _curves(documents), _clock(time)
    tables = [accuracies(documents, "lra-accuracy", "")]
    if short:
        tables.append(accuracies(short, "lra-accuracy-short", ", of the shorter runs that all attentions have"))
    blocks = [
        Block(
            "Test accuracy",
            (),
            (Finding(equal.evidence, equal.verdict), Finding(paper.WARNING)),
            (*tables, budgets(every)),
        ),
        Block("Training loss against steps", tuple(charts(documents)), (Finding(by_steps.evidence, by_steps.verdict),)),
    ]
    if time is not None:
        clocks = tuple(charts(documents, pace))
        blocks.append(Block("Against wall clock", clocks, (Finding(by_clock.evidence, by_clock.verdict),), (time,)))
    return Section(
        NAME, TITLE, _intro(every), tuple(blocks), (equal, by_steps, by_clock), f"accuracy: {equal.evidence}"
    )


def _intro(documents: list[Document]) -> str:
    said = [
        "Every attention in the same encoder, equal steps within a table, one preset; the best checkpoint by dev "
        "accuracy is tested. What differs from the paper is in the table of budgets: steps, batches, learning rates."
    ]
    if any(d["settings"].get("group_lengths") for d in documents):
        said.append(
            "Where it says so, a batch holds examples of similar length, which leaves less padding; nothing is cut off."
        )
    retrieval = [d["result"].get("examples", {}) for d in documents if d["settings"]["task"] == "retrieval"]
    pairs = next((examples["train"] for examples in retrieval if "train" in examples), OFFICIAL_RETRIEVAL)
    if pairs != OFFICIAL_RETRIEVAL:
        said.append(
            f"Retrieval here has {pairs:,} citation pairs, not the {OFFICIAL_RETRIEVAL:,} of the benchmark: its accuracy is "
            "not comparable with published ones."
        )
    missing = [task for task in task_names() if all(d["settings"]["task"] != task for d in documents)]
    if missing:
        said.append(f"Not trained in this folder: {listed(missing)}.")
    return " ".join(said)


def _longest(documents: list[Document]) -> tuple[list[Document], list[Document]]:
    """Of each task, the runs of most steps, and all others: only runs of equal steps are compared."""
    most = {
        task: max(d["settings"]["steps"] for d in found)
        for task, found in group(documents, lambda d: d["settings"]["task"]).items()
    }
    long = [d["settings"]["steps"] == most[d["settings"]["task"]] for d in documents]
    return [d for d, is_long in zip(documents, long, strict=True) if is_long], [
        d for d, is_long in zip(documents, long, strict=True) if not is_long
    ]


def accuracies(documents: list[Document], name: str, which: str) -> Table:
    tasks = [task for task in task_names() if any(d["settings"]["task"] == task for d in documents)]
    rows = []
    for attention, found in group(documents, lambda d: d["settings"]["attention"]).items():
        cells: list[Any] = []
        for task in tasks:
            values = [100 * d["result"]["test"]["accuracy"] for d in found if d["settings"]["task"] == task]
            dev = [100 * d["result"]["dev_accuracy"] for d in found if d["settings"]["task"] == task]
            cells += [mean(values) if values else None, mean(dev) if dev else None, paper.accuracy(attention, task)]
        rows.append((attention, *cells))
    columns = ("attention", *(f"{task}{what}" for task in tasks for what in ("", ", dev", ", paper")))
    return Table(
        name,
        f"Test accuracy in per cent, with the best dev accuracy and the paper's{which}",
        columns,
        tuple(rows),
        ("", *(".2f",) * 3 * len(tasks)),
    )


def budgets(documents: list[Document]) -> Table:
    rows = []
    for (task, _), found in group(documents, lambda d: (d["settings"]["task"], d["settings"]["steps"])).items():
        s, r = found[0]["settings"], found[0]["result"]
        error = 100 * (0.25 / r["test"]["examples"]) ** 0.5
        rows.append(
            (
                task,
                s["length"],
                s["steps"],
                s["batch"],
                s["lr"],
                s["dropout"],
                "yes" if s.get("group_lengths") else "no",
                len(found),
                r["test"]["examples"],
                error,
                50_000,
            )
        )
    columns = (
        "task",
        "length",
        "steps",
        "batch",
        "learning rate",
        "dropout",
        "by length",
        "runs",
        "test examples",
        "standard error, at most, points",
        "the paper's steps",
    )
    return Table(
        "lra-budget", "With what budget", columns, tuple(rows), ("", ",", ",", "", "g", "g", "", "", ",", ".1f", ",")
    )


def _smooth(document: Document) -> list[tuple[float, float]]:
    points = document["result"]["curves"]["train"]
    parts = [points[i : i + WINDOW] for i in range(0, len(points) - WINDOW + 1, WINDOW)] or [points]
    return [(part[-1][0], mean(p[1] for p in part)) for part in parts if part]


def charts(documents: list[Document], pace: list[Document] | None = None) -> list[Chart]:
    """With `pace`, the x axis is time in units of a step of fastmax2."""
    found = []
    for task, runs in group(documents, lambda d: d["settings"]["task"]).items():
        costs = None if pace is None else _costs(runs[0], pace)
        series = []
        for d in runs:
            name = d["settings"]["attention"]
            if (
                name not in CURVES
                or d["settings"]["seed"]
                or (pace is not None and (costs is None or name not in costs))
            ):
                continue
            unit = 1.0 if costs is None else costs[name]
            x, y = zip(*((step * unit, loss) for step, loss in _smooth(d)), strict=True)
            series.append(Series(name, x, y))
        if series and (pace is None or costs is not None):
            label = "training steps" if pace is None else "time, in steps of fastmax2"
            kind = "steps" if pace is None else "clock"
            found.append(Chart(f"lra-loss-{task}-{kind}", task, label, "training loss, nats", tuple(series)))
    return found


def _costs(document: Document, pace: list[Document]) -> dict[str, float] | None:
    """Seconds of a step over those of fastmax2, as timed on the batches of these very runs."""
    s = document["settings"]
    same = ("task", "batch", "length", "group_lengths", "attention_dropout")
    timed = next((d for d in pace if all(d["settings"][name] == s.get(name) for name in same)), None)
    if timed is None:
        return None
    best = {name: t["best"] for name, t in timed["result"]["seconds"].items()}
    return {name: seconds / best["fastmax2"] for name, seconds in best.items()}


def equal_time(documents: list[Document], pace: list[Document]) -> Table | None:
    """When fastmax2 is done: the best dev accuracy that each has seen by then."""
    rows = []
    for task, runs in group(
        (d for d in documents if not d["settings"]["seed"]), lambda d: d["settings"]["task"]
    ).items():
        costs = _costs(runs[0], pace)
        if costs is None:
            continue
        by_name = {d["settings"]["attention"]: d for d in runs}
        if not {"softmax", "fastmax2"} <= by_name.keys():
            continue
        whole = by_name["fastmax2"]["settings"]["steps"]
        for name in ("fastmax2", "fastmax1", "softmax"):
            if name in by_name:
                kernels = {"softmax": ("softmax", "vanilla")}.get(name, (name,))
                for kernel in kernels:
                    steps = min(whole / costs[kernel], by_name[name]["settings"]["steps"])
                    seen = [100 * p[2] for p in by_name[name]["result"]["curves"]["dev"] if p[0] <= steps]
                    rows.append(
                        (
                            task,
                            name if kernel == name else f"{name}, plain formula",
                            costs[kernel],
                            steps,
                            max(seen) if seen else None,
                        )
                    )
    if not rows:
        return None
    columns = (
        "task",
        "attention",
        "time of a step, fastmax2 = 1",
        "steps in the time of fastmax2's run",
        "best dev accuracy by then, %",
    )
    return Table(
        "lra-equal-time",
        "Accuracy at equal time: when the run of fastmax2 ends",
        columns,
        tuple(rows),
        ("", "", ".2f", ",.0f", ".2f"),
    )


def _equal(documents: list[Document]) -> Claim:
    parts, gaps = [], []
    for task, found in group((d for d in documents), lambda d: d["settings"]["task"]).items():
        dev = {
            name: mean(d["result"]["dev_accuracy"] for d in runs)
            for name, runs in group(found, lambda d: d["settings"]["attention"]).items()
        }
        test = {
            name: spread([100 * d["result"]["test"]["accuracy"] for d in runs])[0]
            for name, runs in group(found, lambda d: d["settings"]["attention"]).items()
        }
        ours = [name for name in dev if name.startswith("fastmax")]
        if "softmax" not in test or not ours:
            continue
        best = max(ours, key=lambda name: dev[name])
        gaps.append(test[best] - test["softmax"])
        parts.append(
            f"{task}: softmax {test['softmax']:.1f}"
            + (f", fastmax2 {test['fastmax2']:.1f}" if "fastmax2" in test else "")
            + f", best by dev {best} {test[best]:.1f}"
        )
    if not gaps:
        return Claim(*EQUAL, OPEN, "No task has both softmax and a Fastmax in this folder.")
    long = min(d["settings"]["steps"] for d in documents) >= ENOUGH
    verdict = (
        OPEN
        if not long
        else AGREES
        if mean(gaps) > -1 and len(gaps) == len(task_names())
        else PARTLY
        if mean(gaps) > -1
        else DIFFERS
    )
    text = (
        f"at equal steps, {'; '.join(parts)} (mean gap {mean(gaps):+.1f} points over {len(gaps)} "
        f"task{'s' if len(gaps) > 1 else ''})"
    )
    text += f"; fewer than {ENOUGH:,} steps, too few to judge by" if not long else ""
    return Claim(*EQUAL, verdict, text)


def _curves(documents: list[Document]) -> Claim:
    parts, ahead = [], []
    for task, found in group(documents, lambda d: d["settings"]["task"]).items():
        ends = {
            d["settings"]["attention"]: _smooth(d)[-1][1]
            for d in found
            if d["settings"]["attention"] in CURVES and not d["settings"]["seed"]
        }
        if {"softmax", "fastmax1"} <= ends.keys():
            parts.append(f"{task} " + ", ".join(f"{name} {loss:.3f}" for name, loss in ends.items()))
            ahead.append(ends["softmax"] <= ends["fastmax1"] + 0.01)
    if not parts:
        return untested(*STEPS, "no task has both softmax and fastmax1 in this folder")
    long = min(d["settings"]["steps"] for d in documents) >= ENOUGH
    verdict = OPEN if not long else AGREES if all(ahead) else PARTLY if any(ahead) else DIFFERS
    return Claim(*STEPS, verdict, f"Training loss at the end, mean of the last points: {'; '.join(parts)}.")


def _clock(table: Table | None) -> Claim:
    if table is None:
        return untested(*CLOCK, "no task has both trainings and timed steps of the same kind in this folder")
    parts, ahead = [], []
    for task in dict.fromkeys(row[0] for row in table.rows):
        rows = {row[1]: row for row in table.rows if row[0] == task}
        said = ", ".join(f"{name} {'none yet' if row[4] is None else f'{row[4]:.1f} %'}" for name, row in rows.items())
        parts.append(f"{task}: {said}")
        ours = rows.get("fastmax1", rows["fastmax2"])[4]
        theirs = rows["softmax, plain formula"][4]
        ahead.append(ours is not None and (theirs is None or ours > theirs))
    verdict = AGREES if all(ahead) else PARTLY if any(ahead) else DIFFERS
    return Claim(*CLOCK, verdict, f"Best dev accuracy in the time of fastmax2's run: {'; '.join(parts)}.")
