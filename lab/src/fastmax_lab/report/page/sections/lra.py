"""Long Range Arena: accuracy (Table 1), loss curves and accuracy at equal time (Figure 6)."""

from statistics import mean, stdev

from fastmax_lab.lra import paper
from fastmax_lab.lra.presets import preset
from fastmax_lab.lra.tasks import names as task_names
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
from fastmax_lab.report.page.sections.lra_runs import (
    ENOUGH,
    PAPER,
    accuracy,
    at_chance,
    best_fastmax,
    by_attention,
    error,
    is_fastmax,
    of_kind,
)
from fastmax_lab.report.page.words import listed

NAME = "lra"
TITLE = "Long Range Arena: accuracy and loss curves (Table 1, Figure 6)"
EQUAL = (
    "Table 1",
    "Fastmax reaches the accuracy of softmax on the Long Range Arena (57.90 and 57.62 against 57.37 on average).",
)
STEPS = ("Figure 6", "Measured by steps, softmax converges at the same speed as Fastmax1 or faster.")
BEST = "Fastmax, best by dev"
WINDOW = 10
"""Points of the training loss, each of a single batch, that are averaged to one of the curve."""
OFFICIAL_RETRIEVAL = 147_086
"""Training pairs of the benchmark's own release."""


def section(results: Results) -> Section:
    every = results.get(NAME, [])
    if not every:
        return Section(NAME, TITLE, claims=(untested(*EQUAL), untested(*STEPS), untested(*lra_time.CLOCK)))
    measurements, short, longer = (of_kind(every, kind) for kind in ("", "short", "longer"))
    pace = results.get("lra-pace", [])
    time = lra_time.table(measurements, longer, pace)
    equal, by_steps, by_clock = _equal(measurements), _curves(measurements), lra_time.claim(time)
    tables = []
    for runs, name, which in ((measurements, "lra-accuracy", ""), (short, "lra-accuracy-short", ", of short runs")):
        if runs:
            tables += [accuracies(runs, name, which), dev_accuracies(runs, f"{name}-dev", which)]
    if longer:
        tables.append(longer_runs(longer, measurements))
    findings = (equal.finding, *guessing(every), Finding(paper.WARNING))
    blocks = [
        PageBlock("Test accuracy", (), findings, (*tables, budgets(every))),
        PageBlock("Training loss against steps", tuple(charts(measurements)), (by_steps.finding,)),
    ]
    if time is not None:
        found = (by_clock.finding, Finding(lra_time.HOW))
        accuracy_charts = tuple(lra_time.charts(measurements, longer, pace))
        blocks.append(PageBlock("Accuracy against wall clock", accuracy_charts, found, (time,)))
        again = Finding("The training losses once more, every step at the pace of its own attention.")
        blocks.append(PageBlock("Training loss against wall clock", tuple(charts(measurements, pace)), (again,)))
    return Section(
        NAME, TITLE, _intro(every), tuple(blocks), (equal, by_steps, by_clock), f"accuracy: {equal.evidence}"
    )


def _intro(measurements: list[Measurement]) -> str:
    said = [
        "Every attention in the same encoder, equal steps within a task of a table, one preset; the best checkpoint by dev "
        "accuracy is tested. What differs from the paper's harness is in the table of budgets: steps, batches, rates."
    ]
    settings = [d.settings for d in measurements]
    tasks = {s["task"] for s in settings}
    if len({s["seed"] for s in settings}) == 1:
        said.append("One seed.")
    if any(s["lr"] != preset("skyformer", s["task"]).train.lr for s in settings):
        said.append("Learning rates other than the harness's were tried out with Fastmax, hardly with softmax.")
    if any(s.get("group_lengths") for s in settings):
        said.append(
            "Where it says so, a batch holds examples of similar length, which leaves less padding; nothing is cut off."
        )
    if "text" in tasks:
        said.append(
            "On Text the dev set is the test set, as in the benchmark: there the best of several has an advantage."
        )
    retrieval = [d.values.get("examples", {}) for d in measurements if d.settings["task"] == "retrieval"]
    pairs = next((examples["train"] for examples in retrieval if "train" in examples), OFFICIAL_RETRIEVAL)
    if pairs != OFFICIAL_RETRIEVAL:
        said.append(
            f"Retrieval here has {pairs:,} citation pairs, not the {OFFICIAL_RETRIEVAL:,} of the benchmark: its accuracy is "
            "not comparable with published ones."
        )
    missing = [task for task in task_names() if task not in tasks]
    if missing:
        said.append(f"Not trained in this folder: {listed(missing)}.")
    return " ".join(said)


def accuracies(measurements: list[Measurement], name: str, which: str) -> Table:
    """Of each attention, and of the Fastmax that is best by dev accuracy in each task, where there is a choice."""
    tasks = _tasks(measurements)
    rows = []
    for attention, found in _rows(measurements).items():
        ours = _cells(found, tasks, "test")
        theirs = [None if attention == BEST else paper.accuracy(attention, task) for task in tasks]
        both = [cell for pair in zip(ours, theirs, strict=True) for cell in pair]
        rows.append((attention, *both, _mean(ours) if _have_a_mean(found) else None, _mean(theirs)))
    heads = [_head(measurements, task) for task in tasks] + ["mean"]
    columns = ("attention", *(f"{head}{what}" for head in heads for what in ("", ", paper")))
    title = f"Test accuracy in per cent, and the paper's{which}"
    return Table(name, title, columns, tuple(rows), ("", *(".2f",) * 2 * len(heads)))


def dev_accuracies(measurements: list[Measurement], name: str, which: str) -> Table:
    """By which checkpoints, and the best Fastmax, are chosen."""
    tasks = _tasks(measurements)
    rows = []
    for attention, found in _rows(measurements).items():
        cells = _cells(found, tasks, "dev")
        rows.append((attention, *cells, _mean(cells) if _have_a_mean(found) else None))
    columns = ("attention", *(_head(measurements, task) for task in tasks), "mean")
    return Table(
        name, f"Best dev accuracy in per cent{which}", columns, tuple(rows), ("", *(".2f",) * (len(tasks) + 1))
    )


def _tasks(measurements: list[Measurement]) -> list[str]:
    return [task for task in task_names() if any(d.settings["task"] == task for d in measurements)]


def _head(measurements: list[Measurement], task: str) -> str:
    steps = sorted({d.settings["steps"] for d in measurements if d.settings["task"] == task})
    return f"{task} ({listed([f'{n:,}' for n in steps])} steps)"


def _rows(measurements: list[Measurement]) -> dict[str, list[Measurement]]:
    """The runs of each attention, and last those of the best Fastmax, where there is a choice."""
    rows = by_attention(measurements)
    if sum(name.startswith("fastmax") for name in rows) > 1:
        of_task = group(measurements, lambda d: str(d.settings["task"]))
        rows[BEST] = [d for runs in of_task.values() for d in best_fastmax(runs)]
    return rows


def _cells(runs: list[Measurement], tasks: list[str], split: str) -> list[float | None]:
    of_task = group(runs, lambda d: str(d.settings["task"]))
    return [accuracy(of_task[task], split) if task in of_task else None for task in tasks]


def _have_a_mean(runs: list[Measurement]) -> bool:
    """Return whether a mean over tasks says anything: the same steps in each, and none at chance level."""
    return len({d.settings["steps"] for d in runs}) == 1 and not any(map(at_chance, runs))


def _mean(cells: list[float | None]) -> float | None:
    """Over tasks, where none is missing."""
    return None if None in cells else mean(cell for cell in cells if cell is not None)


def longer_runs(longer: list[Measurement], equal: list[Measurement]) -> Table:
    rows = []
    for d in longer:
        s, r = d.settings, d.values
        softmax = [e for e in equal if (e.settings["task"], e.settings["attention"]) == (s["task"], "softmax")]
        theirs = (softmax[0].settings["steps"], accuracy(softmax), accuracy(softmax, "dev")) if softmax else (None,) * 3
        own = (s["steps"], 100 * r["test"]["accuracy"], 100 * r["dev_accuracy"])
        rows.append((s["task"], s["attention"], *own, *theirs))
    columns = (
        "task",
        "attention",
        "steps",
        "test, %",
        "dev, %",
        "softmax's steps",
        "softmax, test, %",
        "softmax, dev, %",
    )
    title = "Runs of more steps, in no more than the time of softmax's"
    formats = ("", "", ",", ".2f", ".2f", ",", ".2f", ".2f")
    return Table("lra-accuracy-longer", title, columns, tuple(rows), formats)


def budgets(measurements: list[Measurement]) -> Table:
    rows = []
    for (task, _), found in group(measurements, lambda d: (d.settings["task"], d.settings["steps"])).items():
        s, r = found[0].settings, found[0].values
        most = 100 * (0.25 / r["test"]["examples"]) ** 0.5
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
                most,
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
        "the harness's steps",
        "its batch",
    )
    return Table(
        "lra-budget",
        "With what budget, and that of the harness whose rows the paper has",
        columns,
        tuple(rows),
        ("", ",", ",", "", "g", "g", "", "", ",", ".1f", ",", ","),
    )


def _smooth(measurement: Measurement) -> list[tuple[float, float]]:
    points = measurement.values["curves"]["train"]
    parts = [points[i : i + WINDOW] for i in range(0, len(points) - WINDOW + 1, WINDOW)] or [points]
    return [(part[-1][0], mean(p[1] for p in part)) for part in parts if part]


def charts(measurements: list[Measurement], pace: list[Measurement] | None = None) -> list[Chart]:
    """With `pace`, the x axis is time."""
    found = []
    for task, runs in group(measurements, lambda d: d.settings["task"]).items():
        of_step = {} if pace is None else lra_time.seconds(runs[0], pace)
        series = []
        for d in runs:
            name = d.settings["attention"]
            kernel = lra_time.kernels(name)[name]
            if name not in lra_time.ATTENTIONS or d.settings["seed"] or (pace is not None and kernel not in of_step):
                continue
            unit = 1.0 if pace is None else of_step[kernel] / 60
            x, y = zip(*((step * unit, loss) for step, loss in _smooth(d)), strict=True)
            series.append(Series(name, x, y))
        if series:
            label = "training steps" if pace is None else lra_time.MINUTES
            kind = "steps" if pace is None else "clock"
            found.append(Chart(f"lra-loss-{task}-{kind}", task, label, "training loss, nats", tuple(series)))
    return found


def guessing(measurements: list[Measurement]) -> list[Finding]:
    """What has not learned anything, and how long was tried."""
    parts = []
    for (task, steps), found in group(
        measurements, lambda d: (d.settings["task"], d.settings["steps"])
    ).items():  # fmt: skip
        names = list(by_attention(d for d in found if at_chance(d)))
        if names:
            parts.append(f"{task}, {steps:,} steps of {found[0].settings['batch']} examples: {listed(names)}")
    return [Finding(f"Still within two standard errors of guessing: {'; '.join(parts)}.")] if parts else []


def _equal(measurements: list[Measurement]) -> Claim:
    """The paper's Fastmax2, at its scale where that was trained, against softmax: where one of the two has learned something,
    and beyond noise. The best by dev stands beside it: it has had more tries, and may be gated, which the paper's is not."""
    parts, gaps, undecided = [], {}, []
    tried = 0
    for task, found in group(measurements, lambda d: d.settings["task"]).items():
        runs = by_attention(found)
        ours = runs.get(PAPER, runs.get("fastmax2", []))
        if "softmax" not in runs or not ours:
            continue
        softmax, best = runs["softmax"], best_fastmax(found)
        name = best[0].settings["attention"]
        parts.append(
            f"{task}: softmax {accuracy(softmax):.2f}, {ours[0].settings['attention']} {accuracy(ours):.2f}, "
            f"best by dev {name} {accuracy(best):.2f}"
        )
        if found[0].settings["steps"] < ENOUGH or all(at_chance(d) for d in (*softmax, *ours, *best)):
            undecided.append(task)
            continue
        gaps[task] = accuracy(ours) - accuracy(softmax), (error(ours) ** 2 + error(softmax) ** 2) ** 0.5
        tried = max(tried, sum(map(is_fastmax, (of[0] for of in runs.values()))))
    if not parts:
        return Claim(*EQUAL, OPEN, "No task has both softmax and a Fastmax2 in this folder.")
    text = f"at equal steps, {'; '.join(parts)}"
    if gaps:
        listed_gaps = listed([f"{task} {gap:+.1f} (standard error {of:.1f})" for task, (gap, of) in gaps.items()])
        text += f". Gaps of Fastmax2, in points: {listed_gaps}. The best by dev had up to {tried} tries, our gate among them"
    if undecided:
        text += f". Fewer than {ENOUGH:,} steps, or all still guessing, so that nothing is decided: {listed(undecided)}"
    return Claim(*EQUAL, _reached(list(gaps.values())), text)


def _reached(gaps: list[tuple[float, float]]) -> str:
    """By two standard errors: does not hold if every decided task is behind; holds if all are decided and none is behind."""
    if not gaps:
        return OPEN
    behind = [gap < -2 * of for gap, of in gaps]
    if all(behind):
        return DIFFERS
    return AGREES if not any(behind) and len(gaps) == len(task_names()) else PARTLY


def _curves(measurements: list[Measurement]) -> Claim:
    """By the loss at the end, beyond two standard errors of its last points, where something was learned."""
    parts, not_behind = [], []
    for task, found in group((d for d in measurements if not d.settings["seed"]), lambda d: d.settings["task"]).items():
        runs = {d.settings["attention"]: d for d in found if d.settings["attention"] in lra_time.ATTENTIONS}
        if not {"softmax", "fastmax1"} <= runs.keys():
            continue
        ends = {name: _end(d) for name, d in runs.items()}
        decides = found[0].settings["steps"] >= ENOUGH and not all(at_chance(runs[n]) for n in ("softmax", "fastmax1"))
        said = ", ".join(f"{name} {loss:.3f}" for name, (loss, _) in ends.items())
        parts.append(f"{task} {said}" + ("" if decides else " (decides nothing: too short, or both guess)"))
        if decides:
            (softmax, a), (fastmax, b) = ends["softmax"], ends["fastmax1"]
            not_behind.append(softmax <= fastmax + 2 * (a**2 + b**2) ** 0.5)
    if not parts:
        return untested(*STEPS, "no task has both softmax and fastmax1 in this folder")
    verdict = OPEN if not not_behind else AGREES if all(not_behind) else PARTLY if any(not_behind) else DIFFERS
    return Claim(*STEPS, verdict, f"Training loss at the end, mean of the last {WINDOW} points: {'; '.join(parts)}.")


def _end(measurement: Measurement) -> tuple[float, float]:
    """The training loss at the end, and its standard error over the batches that it was taken of."""
    losses = [loss for _, loss, _ in measurement.values["curves"]["train"][-WINDOW:]]
    return mean(losses), stdev(losses) / len(losses) ** 0.5 if len(losses) > 1 else 0.0
