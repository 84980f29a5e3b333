"""Long Range Arena: accuracy (Table 1), loss curves and accuracy at equal time (Figure 6)."""

from dataclasses import replace
from statistics import mean
from typing import Any

from fastmax_lab.lra import paper
from fastmax_lab.lra.presets import preset
from fastmax_lab.lra.tasks import names as task_names
from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page.parts import (
    Chart,
    Finding,
    LeadFigure,
    PageBlock,
    Section,
    Series,
    Table,
    untested,
)
from fastmax_lab.report.page.results import Results, group
from fastmax_lab.report.page.sections import lra_claims, lra_clock, lra_settings, lra_time
from fastmax_lab.report.page.sections.lra_runs import (
    PAPER,
    accuracy,
    at_chance,
    best_fastmax,
    by_attention,
    error,
    learned,
    split,
)
from fastmax_lab.report.page.words import listed

NAME = "lra"
TITLE = "Long Range Arena: accuracy and loss curves (Table 1, Figure 6)"
BEST = "Fastmax, best by dev"
SMOOTHED = (
    "Lines are means of the last thirty points, each of a single batch; the points themselves are faint. Tasks on which "
    "nothing has left chance level are not drawn."
)
WINDOW, STRIDE = 30, 5
"""Points of the training loss, each of a single batch, that are averaged to one of the curve, and that are between two."""
OFFICIAL_RETRIEVAL = 147_086
"""Training pairs of the benchmark's own release."""


def section(results: Results) -> Section:
    every = results.get(NAME, [])
    if not every:
        return Section(
            NAME, TITLE, claims=(untested(*lra_claims.EQUAL), untested(*lra_claims.STEPS), untested(*lra_time.CLOCK))
        )
    measurements, longer = split(every)
    pace, curves = results.get("lra-pace", []), learned(measurements)
    tasks = {d.settings["task"] for d in curves}
    went_on = [d for d in longer if d.settings["task"] in tasks]
    time = lra_time.table(curves, went_on, pace)
    rates_tuned = results.get(lra_settings.NAME, [])
    equal, by_steps = lra_claims.equal(measurements, rates_tuned), lra_claims.by_steps(measurements, rates_tuned)
    for_equal_time = results.get(lra_clock.NAME, [])
    by_clock = lra_claims.by_clock(time, for_equal_time, pace)
    tables = [accuracies(curves), dev_accuracies(curves)] if curves else []
    if longer:
        tables.append(longer_runs(longer, measurements, pace))
    tables += [one for one in (lra_claims.gaps(curves), chance(every)) if one.rows]
    against_time = [] if time is None else charts(curves, pace)
    leads = (*_accuracy_lead(measurements), *_time_lead(against_time, time))
    blocks = [
        PageBlock("Test accuracy", (), (*equal.findings, Finding(paper.WARNING)), (*tables, budgets(every))),
        PageBlock(
            "Training loss against steps",
            tuple(charts(curves)),
            (*by_steps.findings, Finding(SMOOTHED)),
            (lra_claims.ends(curves),),
        ),
    ]
    blocks += lra_clock.blocks(for_equal_time, pace, by_clock)
    if time is not None:
        found = (*(() if for_equal_time else by_clock.findings), Finding(lra_time.HOW))
        accuracy_charts = tuple(lra_time.charts(curves, went_on, pace))
        blocks.append(PageBlock("Accuracy against wall clock", accuracy_charts, found, (time,)))
        reached = lra_time.to_accuracy(curves, went_on, pace)
        if reached.rows:
            blocks.append(PageBlock("Time to accuracy", lra_time.to_accuracy_chart(reached), (), (reached,)))
        again = Finding("Every step takes the time of its attention.")
        blocks.append(PageBlock("Training loss against wall clock", tuple(against_time), (again,)))
    claims, headline = (equal, by_steps, by_clock), f"accuracy: {equal.number}"
    return Section(NAME, TITLE, _intro(every), tuple(blocks), claims, headline, leads)


def _accuracy_lead(measurements: list[Measurement]) -> tuple[LeadFigure, ...]:
    """Draw the accuracy by task of softmax, the paper's Fastmaxes and the gated one, where something was learned."""
    shown = ("softmax", "fastmax1", PAPER, "fastmax2, gated")
    found = group(measurements, lambda d: d.settings["task"])
    tasks = [task for task, runs in found.items() if "softmax" in by_attention(runs) and not all(map(at_chance, runs))]
    if not tasks:
        return ()
    series = []
    for number, name in enumerate(shown):
        runs = {task: of for task in tasks if not all(map(at_chance, of := by_attention(found[task]).get(name, [])))}
        places = tuple(tasks.index(task) + 0.15 * (number - (len(shown) - 1) / 2) for task in runs)
        if runs:
            x = tuple(accuracy(of) for of in runs.values())
            series.append(Series(name, x, places, tuple(error(of) for of in runs.values())))
    chart = Chart(
        "lra-accuracy-by-task", "Long Range Arena", "test accuracy, %", "", tuple(series), categories=tuple(tasks)
    )
    level = sum(row[-2] == "level" for row in lra_claims.gaps(measurements).rows)
    decided = sum(row[-2] != "open" for row in lra_claims.gaps(measurements).rows)
    said = f"In equal steps Fastmax2 and softmax are level on {level} of {decided} tasks, within two standard errors"
    return (LeadFigure(chart, said),)


def _time_lead(drawn: list[Chart], time: Table | None) -> tuple[LeadFigure, ...]:
    """Draw the training loss against time of the paper's Figure 6, and say what a step of Fastmax1 costs."""
    prices = {} if time is None else {(row[0], row[1]): row[2] for row in time.rows}
    for task in ("image", "text", "listops"):
        chart = next((one for one in drawn if one.title == task), None)
        if chart is not None and {(task, "softmax"), (task, "fastmax1")} <= prices.keys():
            share = prices[task, "fastmax1"] / prices[task, "softmax"]
            said = f"A training step of Fastmax1 takes {share:.2f} of the time of one with PyTorch's softmax kernel"
            return (LeadFigure(replace(chart, name=f"{chart.name}-lead", title=f"Training loss on {task}"), said),)
    return ()


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


def accuracies(measurements: list[Measurement]) -> Table:
    """Return test accuracies of each attention and, where there is a choice, of the Fastmax that is best by dev accuracy."""
    tasks = _tasks(measurements)
    rows: list[tuple[Any, ...]] = []
    for attention, found in _rows(measurements).items():
        ours = _cells(found, tasks, "test")
        theirs = [None if attention == BEST else paper.accuracy(attention, task) for task in tasks]
        both = [cell for pair in zip(ours, theirs, strict=True) for cell in pair]
        rows.append((attention, *both, _mean(ours) if _have_a_mean(found) else None, _mean(theirs)))
    heads = [_head(measurements, task) for task in tasks] + ["mean"]
    columns: tuple[str, ...] = ("attention", *(f"{head}{what}" for head in heads for what in ("", ", paper")))
    if len(tasks) == 1 or all(row[-2] is None for row in rows):
        columns, rows = columns[:-2], [row[:-2] for row in rows]
    title = "Test accuracy in per cent, and the paper's"
    return Table("lra-accuracy", title, columns, tuple(rows), ("", *(".2f",) * 2 * len(heads)))


def dev_accuracies(measurements: list[Measurement]) -> Table:
    """Return the dev accuracies, which choose the checkpoints and the best Fastmax."""
    tasks = _tasks(measurements)
    rows: list[tuple[Any, ...]] = []
    for attention, found in _rows(measurements).items():
        cells = _cells(found, tasks, "dev")
        rows.append((attention, *cells, _mean(cells) if _have_a_mean(found) else None))
    columns: tuple[str, ...] = ("attention", *(_head(measurements, task) for task in tasks), "mean")
    if len(tasks) == 1 or all(row[-1] is None for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    formats = ("", *(".2f",) * (len(tasks) + 1))
    return Table("lra-accuracy-dev", "Best dev accuracy in per cent", columns, tuple(rows), formats)


def _tasks(measurements: list[Measurement]) -> list[str]:
    return [task for task in task_names() if any(d.settings["task"] == task for d in measurements)]


def _head(measurements: list[Measurement], task: str) -> str:
    steps = sorted({d.settings["steps"] for d in measurements if d.settings["task"] == task})
    return f"{task} ({listed([f'{n:,}' for n in steps])} steps)"


def _rows(measurements: list[Measurement]) -> dict[str, list[Measurement]]:
    """Return the runs of each attention and, where there is a choice, last those of the best Fastmax."""
    rows = by_attention(measurements)
    if sum(name.startswith("fastmax") for name in rows) > 1:
        of_task = group(measurements, lambda d: str(d.settings["task"]))
        rows[BEST] = [d for runs in of_task.values() for d in best_fastmax(runs)]
    return rows


def _cells(runs: list[Measurement], tasks: list[str], split: str) -> list[float | None]:
    """Return an accuracy for each task, None where there is no run or it is at chance level."""
    of_task = group(runs, lambda d: str(d.settings["task"]))
    return [
        None if task not in of_task or all(map(at_chance, of_task[task])) else accuracy(of_task[task], split)
        for task in tasks
    ]


def _have_a_mean(runs: list[Measurement]) -> bool:
    """Return True if a mean over tasks is comparable: the same steps in each, and none at chance level."""
    return len({d.settings["steps"] for d in runs}) == 1 and not any(map(at_chance, runs))


def _mean(cells: list[float | None]) -> float | None:
    """Return the mean over tasks, or None if one is missing."""
    return None if None in cells else mean(cell for cell in cells if cell is not None)


def longer_runs(longer: list[Measurement], equal: list[Measurement], pace: list[Measurement]) -> Table:
    rows = []
    for d in longer:
        s, r = d.settings, d.values
        softmax = [e for e in equal if (e.settings["task"], e.settings["attention"]) == (s["task"], "softmax")]
        theirs: tuple[float | None, ...] = (softmax[0].settings["steps"], None, None) if softmax else (None,) * 3
        if softmax and not all(map(at_chance, softmax)):
            theirs = (theirs[0], accuracy(softmax), accuracy(softmax, "dev"))
        own = (s["steps"], 100 * r["test"]["accuracy"], 100 * r["dev_accuracy"])
        of_step = lra_time.seconds(d, pace)
        share = None
        if softmax and {"softmax", s["attention"]} <= of_step.keys():
            share = s["steps"] * of_step[s["attention"]] / (softmax[0].settings["steps"] * of_step["softmax"])
        rows.append((s["task"], s["attention"], *own, *theirs, share))
    columns = (
        "task",
        "attention",
        "steps",
        "test, %",
        "dev, %",
        "softmax's steps",
        "softmax, test, %",
        "softmax, dev, %",
        "of its time",
    )
    title = "Runs of more steps, in no more than the time of softmax's"
    formats = ("", "", ",", ".2f", ".2f", ",", ".2f", ".2f", ".2f")
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
    parts = [points[max(0, end - WINDOW) : end] for end in range(STRIDE, len(points) + 1, STRIDE)] or [points]
    return [(part[-1][0], mean(p[1] for p in part)) for part in parts if part]


def charts(measurements: list[Measurement], pace: list[Measurement] | None = None) -> list[Chart]:
    """Draw the training losses of each task. If `pace` is given, the x axis is time."""
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
            raw = tuple((step * unit, loss) for step, loss, _ in d.values["curves"]["train"])
            series.append(Series(name, x, y, raw=raw))
        if series:
            label = "training steps" if pace is None else lra_time.MINUTES
            kind = "steps" if pace is None else "clock"
            name = f"lra-loss-{task}-{kind}"
            found.append(Chart(name, task, label, "training loss, nats", tuple(series), x_log=pace is not None))
    return found


def chance(measurements: list[Measurement]) -> Table:
    """Return the runs that have not left chance level, and how long they were."""
    rows = []
    for (task, steps), found in group(measurements, lambda d: (d.settings["task"], d.settings["steps"])).items():
        names = list(by_attention(d for d in found if at_chance(d)))
        if names:
            rows.append((task, steps, found[0].settings["batch"], "; ".join(names)))
    return Table(
        "lra-chance",
        "Runs within two standard errors of chance level",
        ("task", "steps", "batch", "attentions"),
        tuple(rows),
        ("", ",", "", ""),
        folded=True,
    )
