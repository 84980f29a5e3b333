"""Long Range Arena at equal time (Figure 6): steps of the trainings at the price that a quiet machine had for each."""

from typing import NamedTuple

from fastmax_lab.lra.tasks import task as shape
from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page.parts import AGREES, DIFFERS, OPEN, PARTLY, Chart, Claim, Series, Table, untested
from fastmax_lab.report.page.results import group
from fastmax_lab.report.page.sections.lra_runs import ENOUGH, PAPER, SEED_SPREAD
from fastmax_lab.report.page.words import listed

CLOCK = ("Figure 6", "Measured by wall clock, Fastmax1 converges much faster than softmax.")
ATTENTIONS = ("fastmax1", "fastmax2", PAPER, "fastmax2, gated", "softmax")
PLAIN = "softmax, plain formula"
KERNELS = {"softmax": {"softmax": "softmax", PLAIN: "vanilla"}, PAPER: {PAPER: "fastmax2"}}
"""The steps that were timed for a training: softmax is trained once and timed in two ways, and a scale takes no time."""
MINUTES = "minutes, at the pace of an idle machine"
HOW = (
    "Minutes are steps times the median seconds of a step, timed on an idle machine on batches like those of the trainings. "
    "Evaluations on the dev set are not counted. Softmax by the plain formula is the training of softmax at that formula's "
    "speed. When a Fastmax run ends, softmax is in the middle of its schedule of learning rates."
)


ONE_RATE = "All attentions have the same learning rate, which was not tuned for softmax, and one seed."
REACHED = {"text": 60.0, "image": 25.0, "listops": 30.0, "retrieval": 55.0, "pathfinder": 60.0}
"""Dev accuracies in per cent whose time is compared, by task."""


class Row(NamedTuple):
    """A row of the table. Accuracies are the best of the evaluations on the dev set until then."""

    task: str
    attention: str
    price: float
    best_price: float
    early_steps: float
    """When the run of fastmax2 ends; `late`: when that of softmax does. By the medians, as `price`."""
    early: float | None
    early_next: float | None
    """With the look after that: the most that it can have had in between."""
    late_steps: float
    late: float | None
    noise: float
    """The least gap that decides anything."""


def seconds(measurement: Measurement, pace: list[Measurement], which: str = "median") -> dict[str, float]:
    """Return the seconds of a step on the batches of these runs, median or best of rounds; nothing if they were not timed."""
    s = measurement.settings
    same = ("task", "batch", "length", "group_lengths", "attention_dropout")
    timed = next((d for d in pace if all(d.settings[name] == s.get(name) for name in same)), None)
    return {} if timed is None else {name: t[which] for name, t in timed.values["seconds"].items()}


def kernels(attention: str) -> dict[str, str]:
    """Return the names under which a training is shown, each with the attention whose steps were timed for it."""
    return KERNELS.get(attention, {attention: attention})


def table(equal: list[Measurement], longer: list[Measurement], pace: list[Measurement]) -> Table | None:
    """Return the best dev accuracy of each when the run of fastmax2 ends, and when that of softmax does."""
    rows = []
    for task, runs in group((d for d in equal if not d.settings["seed"]), lambda d: d.settings["task"]).items():
        price = seconds(runs[0], pace)
        by_name = {d.settings["attention"]: d for d in runs}
        if not price or not {"softmax", "fastmax2"} <= by_name.keys():
            continue
        price = {name: one / price["fastmax2"] for name, one in price.items()}
        best = seconds(runs[0], pace, "best")
        more = {d.settings["attention"]: d for d in longer if d.settings["task"] == task}
        steps = by_name["softmax"].settings["steps"]
        looked_at = by_name["softmax"].values["examples"]["val"]
        noise = 2 * (2 * (0.25e4 / looked_at + SEED_SPREAD**2)) ** 0.5
        for name in ATTENTIONS:
            for shown, kernel in kernels(name).items():
                if name not in by_name or kernel not in price:
                    continue
                early = _seen(by_name[name], steps / price[kernel])
                late = _seen(more.get(name, by_name[name]), steps * price["softmax"] / price[kernel])
                rows.append(Row(task, shown, price[kernel], best[kernel] / best["fastmax2"], *early, *late[:2], noise))
    if not rows:
        return None
    columns = (
        "task",
        "attention",
        "time of a step, fastmax2 = 1",
        "by the best of the rounds",
        "steps when fastmax2 ends",
        "best dev accuracy by then, %",
        "with the look after that, %",
        "steps when softmax ends",
        "best dev accuracy by then, % ",
        "two standard errors of a gap, at most",
    )
    return Table(
        "lra-equal-time",
        "Accuracy at equal time: when the run of fastmax2 ends, and when that of softmax (PyTorch's kernel) ends",
        columns,
        tuple(rows),
        ("", "", ".2f", ".2f", ",.0f", ".2f", ".2f", ",.0f", ".2f", ".1f"),
        folded=False,
    )


def charts(equal: list[Measurement], longer: list[Measurement], pace: list[Measurement]) -> list[Chart]:
    """Draw dev accuracy against the minutes that it takes. Longer runs have a separate line."""
    found = []
    for task, runs in group(equal, lambda d: d.settings["task"]).items():
        of_step = seconds(runs[0], pace)
        series = []
        for d in (*runs, *(d for d in longer if d.settings["task"] == task)):
            name, steps = d.settings["attention"], d.settings["steps"]
            for shown, kernel in kernels(name).items():
                points = d.values["curves"]["dev"]
                if d.settings["seed"] or name not in ATTENTIONS or kernel not in of_step or not points:
                    continue
                label = shown if steps == runs[0].settings["steps"] else f"{shown}, {steps:,} steps"
                x, y = zip(*((step * of_step[kernel] / 60, 100 * seen) for step, _, seen in points), strict=True)
                series.append(Series(label, x, y, dashed=label != name))
        if series:
            found.append(
                Chart(f"lra-accuracy-{task}-clock", task, MINUTES, "dev accuracy, %", tuple(series), x_log=True)
            )
    return found


def to_accuracy(equal: list[Measurement], longer: list[Measurement], pace: list[Measurement]) -> Table:
    """Return the minutes that each attention takes to the accuracy of `REACHED`, of the run that gets there first."""
    rows = []
    for task, runs in group(equal, lambda d: d.settings["task"]).items():
        of_step = seconds(runs[0], pace)
        best: dict[str, tuple[float, int]] = {}
        for d in (*runs, *(d for d in longer if d.settings["task"] == task)):
            step = next((step for step, _, seen in d.values["curves"]["dev"] if 100 * seen >= REACHED[task]), None)
            for shown, kernel in kernels(d.settings["attention"]).items():
                if step is not None and kernel in of_step and not d.settings["seed"]:
                    found = (step * of_step[kernel] / 60, step)
                    best[shown] = min(best.get(shown, found), found)
        softmax = best.get("softmax", (None,))[0]
        rows += [
            (task, REACHED[task], name, best[name][1], best[name][0], None if not softmax else best[name][0] / softmax)
            for name in sorted(best, key=best.__getitem__)
        ]
    return Table(
        "lra-time-to-accuracy",
        "Minutes until a look at the dev set first finds an accuracy, of the runs in which one does",
        ("task", "dev accuracy, %", "attention", "steps", "minutes", "over softmax's"),
        tuple(rows),
        ("", ".0f", "", ",", ".1f", ".2f"),
        folded=False,
    )


def to_accuracy_chart(table: Table) -> tuple[Chart, ...]:
    """Draw the table with a row of dots for each task."""
    tasks = tuple(dict.fromkeys(row[0] for row in table.rows))
    names = [name for name in ATTENTIONS if any(row[2] == name for row in table.rows)]
    series = []
    for number, name in enumerate(names):
        own = [row for row in table.rows if row[2] == name]
        places = tuple(tasks.index(row[0]) + 0.12 * (number - (len(names) - 1) / 2) for row in own)
        series.append(Series(name, tuple(row[4] for row in own), places))
    return (
        (
            Chart(
                table.name,
                "Minutes to the dev accuracy of the table",
                MINUTES,
                "",
                tuple(series),
                x_log=True,
                categories=tasks,
            ),
        )
        if series
        else ()
    )


def _seen(measurement: Measurement, steps: float) -> tuple[float, float | None, float | None]:
    """Return the steps that the run has made by then, its best accuracy so far, and the best with the next evaluation."""
    steps = min(steps, measurement.settings["steps"])
    looks = [(step, 100 * accuracy) for step, _, accuracy in measurement.values["curves"]["dev"]]
    before = [accuracy for step, accuracy in looks if step <= steps]
    after = [accuracy for step, accuracy in looks if step > steps]
    return steps, max(before, default=None), max(before + after[:1], default=None)


def claim(found: Table | None) -> Claim:
    """Judge Fastmax1 against softmax with PyTorch's kernel, the faster of its two, where softmax was trained long enough."""
    if found is None:
        return untested(*CLOCK, "no task has both trainings and timed steps of the same kind in this folder")
    ended, ways, numbers = [], [], []
    for task, of_task in _by_task(found).items():
        rows = {row.attention: row for row in of_task}
        theirs = rows["softmax"]
        if "fastmax1" not in rows or theirs.late_steps < ENOUGH:
            continue
        ours = rows["fastmax1"]
        ways.append(_judged(ours, theirs))
        numbers.append(_number(ours, "when fastmax2 ends", ours.early, theirs.early_next))
        if _went_on(ours, theirs):
            numbers.append(_number(ours, "when softmax ends", ours.late, theirs.late))
        elif _gap(ours, ours.late, theirs.late) < -1:
            ended.append(task)
    if not numbers:
        return untested(*CLOCK, "no task has long runs of both softmax and fastmax1 in this folder")
    level = sum(way == 0 for way in ways)
    notes = [f"On {level} of {len(ways)} tasks the two are level."] if level else []
    notes += [f"Fastmax1 ended early and behind softmax on {listed(ended)}."] if ended else []
    notes.append(ONE_RATE)
    number = max(numbers)[1]
    return Claim(*CLOCK, _verdict(ways, all_went_on=not ended), number, tuple(notes), found.name, 1)


def _number(row: Row, when: str, ours: float | None, softmax: float | None) -> tuple[float, str]:
    """Return how far apart the two are, in units of what decides, and the accuracies in words."""
    a, b = ("none yet" if seen is None else f"{seen:.1f} %" for seen in (ours, softmax))
    return abs(_gap(row, ours, softmax)), f"dev accuracy on {row.task} {when}: {a} against {b}"


def _by_task(found: Table) -> dict[str, list[Row]]:
    tasks: dict[str, list[Row]] = {}
    for row in (Row(*cells) for cells in found.rows):
        tasks.setdefault(row.task, []).append(row)
    return tasks


def _went_on(row: Row, softmax: Row) -> bool:
    """Return True if a run has had more steps than softmax, in no more time."""
    return row.late_steps > softmax.late_steps


def _judged(ours: Row, theirs: Row) -> int:
    """Return 1 if Fastmax1 is ahead when it or softmax has ended, and behind at neither; -1 the other way round.

    It is ahead if it exceeds the next evaluation of softmax, even a later one. A run that was not evaluated by then counts as
    one at chance level.
    """
    ahead = [_gap(ours, ours.early, theirs.early_next) > 1]
    behind = [_gap(ours, ours.early, theirs.early) < -1]
    if _went_on(ours, theirs):  # else it ended long before softmax, which says nothing of the time after
        ahead.append(_gap(ours, ours.late, theirs.late) > 1)
        behind.append(_gap(ours, ours.late, theirs.late) < -1)
    return any(ahead) - any(behind)


def _verdict(ways: list[int], *, all_went_on: bool) -> str:
    if not any(ways):
        return OPEN
    if 1 not in ways:
        return DIFFERS
    return AGREES if all_went_on and set(ways) == {1} else PARTLY


def _gap(row: Row, ours: float | None, theirs: float | None) -> float:
    """Return the difference in units of what decides."""
    a, b = (100 / shape(row.task).classes if seen is None else seen for seen in (ours, theirs))
    return (a - b) / row.noise
