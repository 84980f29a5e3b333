"""Long Range Arena: accuracy (Table 1), loss curves and accuracy at equal time (Figure 6)."""

from collections.abc import Iterable, Mapping
from statistics import mean

from fastmax.lra import paper
from fastmax.lra.presets import preset
from fastmax.lra.tasks import names as task_names
from fastmax.lra.tasks import task as shape
from fastmax.report.page.documents import Document, Results, group
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
from fastmax.report.page.sections import lra_time
from fastmax.report.page.words import listed

NAME = "lra"
TITLE = "Long Range Arena: accuracy and loss curves (Table 1, Figure 6)"
EQUAL = (
    "Table 1",
    "Fastmax reaches the accuracy of softmax on the Long Range Arena (57.90 and 57.62 against 57.37 on average).",
)
STEPS = ("Figure 6", "Measured by steps, softmax converges at the same speed as Fastmax1 or faster.")
ENOUGH = 1000
"""Steps below which accuracies are shown but decide nothing."""
BEST = "Fastmax, best by dev"
WINDOW = 10
"""Points of the training loss, each of a single batch, that are averaged to one of the curve."""


OFFICIAL_RETRIEVAL = 147_086
"""Training pairs of the benchmark's own release."""


def section(results: Results) -> Section:
    every = results.get(NAME, [])
    if not every:
        return Section(NAME, TITLE, claims=(untested(*EQUAL), untested(*STEPS), untested(*lra_time.CLOCK)))
    documents, short, longer = by_steps_of_softmax(every)
    pace = results.get("lra-pace", [])
    time = lra_time.table(documents, longer, pace)
    equal = _equal(documents)
    by_steps, by_clock = _curves(documents), lra_time.claim(time)
    tables = [accuracies(documents, "lra-accuracy", "")]
    if short:
        tables.append(accuracies(short, "lra-accuracy-short", ", of the shorter runs that all attentions have"))
    if longer:
        tables.append(accuracies(longer, "lra-accuracy-longer", ", of runs in about the time of softmax's"))
    blocks = [
        Block(
            "Test accuracy",
            (),
            (equal.finding, *guessing(every), Finding(paper.WARNING)),
            (*tables, budgets(every)),
        ),
        Block("Training loss against steps", tuple(charts(documents)), (by_steps.finding,)),
    ]
    if time is not None:
        accuracy = tuple(lra_time.charts(documents, longer, pace))
        finding = by_clock.finding
        blocks.append(Block("Accuracy against wall clock", accuracy, (finding,), (time,)))
        again = Finding("The training losses once more, every step at the pace of its own attention.")
        blocks.append(Block("Training loss against wall clock", tuple(charts(documents, pace)), (again,)))
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


def by_steps_of_softmax(documents: list[Document]) -> tuple[list[Document], list[Document], list[Document]]:
    """Of each task the runs with the steps of softmax's longest, those with fewer and those with more: only runs of equal
    steps are compared in a table."""
    parts: tuple[list[Document], list[Document], list[Document]] = ([], [], [])
    for found in group(documents, lambda d: d["settings"]["task"]).values():
        softmax = [d for d in found if d["settings"]["attention"] == "softmax"]
        equal = max(d["settings"]["steps"] for d in softmax or found)
        for d in found:
            steps = d["settings"]["steps"]
            parts[0 if steps == equal else 1 if steps < equal else 2].append(d)
    return parts


def accuracies(documents: list[Document], name: str, which: str) -> Table:
    """Of each attention, and of the Fastmax that is best by dev accuracy in each task, where there is a choice."""
    tasks = [task for task in task_names() if any(d["settings"]["task"] == task for d in documents)]
    rows = []
    for attention, found in group(documents, lambda d: d["settings"]["attention"]).items():
        theirs = {task: paper.accuracy(attention, task) for task in tasks}
        rows.append((attention, *_cells(found, theirs)))
    choices = {d["settings"]["attention"] for d in documents if _is_fastmax(d)}
    if len(choices) > 1:
        best = [d for task in tasks for d in best_fastmax(d for d in documents if d["settings"]["task"] == task)]
        rows.append((BEST, *_cells(best, dict.fromkeys(tasks))))
    columns = ("attention", *(f"{of}{what}" for of in (*tasks, "mean") for what in ("", ", dev", ", paper")))
    return Table(
        name,
        f"Test accuracy in per cent, with the best dev accuracy and the paper's{which}",
        columns,
        tuple(rows),
        ("", *(".2f",) * 3 * (len(tasks) + 1)),
    )


def _cells(runs: list[Document], theirs: Mapping[str, float | None]) -> list[float | None]:
    """Test, dev and the paper's accuracy of each task of `theirs`, means over seeds; at the end the means over tasks,
    where none is missing."""
    cells: list[float | None] = []
    for task, of_paper in theirs.items():
        own = [d["result"] for d in runs if d["settings"]["task"] == task]
        test, dev = [100 * r["test"]["accuracy"] for r in own], [100 * r["dev_accuracy"] for r in own]
        cells += [mean(test) if own else None, mean(dev) if own else None, of_paper]
    by_kind = [cells[kind::3] for kind in range(3)]
    return cells + [None if None in of else mean(x for x in of if x is not None) for of in by_kind]


def _is_fastmax(document: Document) -> bool:
    return bool(document["settings"]["attention"].startswith("fastmax"))


def best_fastmax(runs: Iterable[Document]) -> list[Document]:
    """Of the runs of one task, those of the Fastmax with the highest dev accuracy, mean over seeds; none if there is none."""
    by_name = group((d for d in runs if _is_fastmax(d)), lambda d: d["settings"]["attention"])
    return max(by_name.values(), key=lambda of: mean(d["result"]["dev_accuracy"] for d in of), default=[])


def budgets(documents: list[Document]) -> Table:
    rows = []
    for (task, _), found in group(documents, lambda d: (d["settings"]["task"], d["settings"]["steps"])).items():
        s, r = found[0]["settings"], found[0]["result"]
        error = 100 * (0.25 / r["test"]["examples"]) ** 0.5
        theirs = preset("skyformer", task).train
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
                theirs.steps,
                theirs.batch,
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
        "its harness's batch",
    )
    return Table(
        "lra-budget",
        "With what budget",
        columns,
        tuple(rows),
        ("", ",", ",", "", "g", "g", "", "", ",", ".1f", ",", ","),
    )


def _smooth(document: Document) -> list[tuple[float, float]]:
    points = document["result"]["curves"]["train"]
    parts = [points[i : i + WINDOW] for i in range(0, len(points) - WINDOW + 1, WINDOW)] or [points]
    return [(part[-1][0], mean(p[1] for p in part)) for part in parts if part]


def charts(documents: list[Document], pace: list[Document] | None = None) -> list[Chart]:
    """With `pace`, the x axis is time."""
    found = []
    for task, runs in group(documents, lambda d: d["settings"]["task"]).items():
        of_step = {} if pace is None else lra_time.seconds(runs[0], pace)
        series = []
        for d in runs:
            name = d["settings"]["attention"]
            kernel = lra_time.kernels(name)[name]
            if name not in lra_time.ATTENTIONS or d["settings"]["seed"] or (pace is not None and kernel not in of_step):
                continue
            unit = 1.0 if pace is None else of_step[kernel] / 60
            x, y = zip(*((step * unit, loss) for step, loss in _smooth(d)), strict=True)
            series.append(Series(name, x, y))
        if series:
            label = "training steps" if pace is None else lra_time.MINUTES
            kind = "steps" if pace is None else "clock"
            found.append(Chart(f"lra-loss-{task}-{kind}", task, label, "training loss, nats", tuple(series)))
    return found


def at_chance(document: Document) -> bool:
    """Whether a run is within two standard errors of always saying the most frequent class."""
    result = document["result"]
    guess = result.get("most_frequent", 1 / shape(document["settings"]["task"]).classes)
    two_errors = 2 * (guess * (1 - guess) / result["test"]["examples"]) ** 0.5
    return bool(result["test"]["accuracy"] < guess + two_errors)


def guessing(documents: list[Document]) -> list[Finding]:
    """What has not learned anything, and how long was tried."""
    parts = []
    for (task, steps), found in group(
        documents, lambda d: (d["settings"]["task"], d["settings"]["steps"])
    ).items():  # fmt: skip
        names = [d["settings"]["attention"] for d in found if at_chance(d)]
        if names:
            parts.append(f"{task}, {steps:,} steps of {found[0]['settings']['batch']} examples: {listed(names)}")
    return [Finding(f"Still within two standard errors of guessing: {'; '.join(parts)}.")] if parts else []


def _equal(documents: list[Document]) -> Claim:
    parts, gaps, undecided = [], [], []
    for task, found in group(documents, lambda d: d["settings"]["task"]).items():
        runs = group(found, lambda d: d["settings"]["attention"])
        test = {name: mean(100 * d["result"]["test"]["accuracy"] for d in of) for name, of in runs.items()}
        ours = best_fastmax(found)
        if "softmax" not in test or not ours:
            continue
        best = ours[0]["settings"]["attention"]
        compared = runs["softmax"] + ours
        if found[0]["settings"]["steps"] >= ENOUGH and not all(at_chance(d) for d in compared):
            gaps.append(test[best] - test["softmax"])
        else:
            undecided.append(task)
        parts.append(
            f"{task}: softmax {test['softmax']:.1f}"
            + (f", fastmax2 {test['fastmax2']:.1f}" if "fastmax2" in test else "")
            + f", best by dev {best} {test[best]:.1f}"
        )
    if not parts:
        return Claim(*EQUAL, OPEN, "No task has both softmax and a Fastmax in this folder.")
    text = f"at equal steps, {'; '.join(parts)}"
    if gaps:
        text += f" (mean gap of the best by dev {mean(gaps):+.1f} points over {len(gaps)} task{'s' * (len(gaps) > 1)})"
    if undecided:
        text += (
            f"; fewer than {ENOUGH:,} steps, or both still guessing, so that nothing is decided: {listed(undecided)}"
        )
    verdict = OPEN if not gaps else DIFFERS if mean(gaps) < -1 else AGREES if len(gaps) == len(task_names()) else PARTLY
    return Claim(*EQUAL, verdict, text)


def _curves(documents: list[Document]) -> Claim:
    parts, ahead = [], []
    for task, found in group(documents, lambda d: d["settings"]["task"]).items():
        ends = {
            d["settings"]["attention"]: _smooth(d)[-1][1]
            for d in found
            if d["settings"]["attention"] in lra_time.ATTENTIONS and not d["settings"]["seed"]
        }
        if {"softmax", "fastmax1"} <= ends.keys():
            parts.append(f"{task} " + ", ".join(f"{name} {loss:.3f}" for name, loss in ends.items()))
            if found[0]["settings"]["steps"] >= ENOUGH:
                ahead.append(ends["softmax"] <= ends["fastmax1"] + 0.01)
    if not parts:
        return untested(*STEPS, "no task has both softmax and fastmax1 in this folder")
    verdict = OPEN if not ahead else AGREES if all(ahead) else PARTLY if any(ahead) else DIFFERS
    return Claim(*STEPS, verdict, f"Training loss at the end, mean of the last points: {'; '.join(parts)}.")
