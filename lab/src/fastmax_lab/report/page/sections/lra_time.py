"""Long Range Arena at equal time (Figure 6): steps of the trainings at the price that a quiet machine had for each."""

from typing import NamedTuple

from fastmax_lab.lra.tasks import task as shape
from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page.parts import AGREES, DIFFERS, OPEN, PARTLY, Chart, Claim, Series, Table, untested
from fastmax_lab.report.page.results import group
from fastmax_lab.report.page.sections.lra_runs import ENOUGH, PAPER, SEED_SPREAD

CLOCK = ("Figure 6", "Measured by wall clock, Fastmax1 converges much faster than softmax.")
ATTENTIONS = ("fastmax1", "fastmax2", PAPER, "fastmax2, gated", "softmax")
PLAIN = "softmax, plain formula"
KERNELS = {"softmax": {"softmax": "softmax", PLAIN: "vanilla"}, PAPER: {PAPER: "fastmax2"}}
"""Whose steps were timed for a training: softmax is trained once and timed in two ways, and a scale takes no time."""
MINUTES = "minutes, at the pace of an idle machine"
HOW = (
    "Minutes are steps times the median seconds of a step, timed apart from the trainings, on an idle machine, on batches "
    "that stand for theirs; looks at the dev set are not counted. Softmax by the plain formula is no training of its own but "
    "softmax's at that formula's pace. Of a learning rate's schedule a run that ends has had all, softmax by then a part."
)


class Row(NamedTuple):
    """Of the table. Accuracies are the best of the looks at the dev set until then."""

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
    """What a gap must exceed to decide anything."""


def seconds(measurement: Measurement, pace: list[Measurement], which: str = "median") -> dict[str, float]:
    """Of a step, as timed on the batches of these very runs, the median or best of rounds; nothing where they were not."""
    s = measurement.settings
    same = ("task", "batch", "length", "group_lengths", "attention_dropout")
    timed = next((d for d in pace if all(d.settings[name] == s.get(name) for name in same)), None)
    return {} if timed is None else {name: t[which] for name, t in timed.values["seconds"].items()}


def kernels(attention: str) -> dict[str, str]:
    """The names under which a training is shown, and whose steps were timed for each."""
    return KERNELS.get(attention, {attention: attention})


def table(equal: list[Measurement], longer: list[Measurement], pace: list[Measurement]) -> Table | None:
    """The best dev accuracy that each has seen when the run of fastmax2 ends, and when that of softmax does."""
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
    """Dev accuracy against the minutes that it takes; those that went on longer have a line of their own."""
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
            found.append(Chart(f"lra-accuracy-{task}-clock", task, MINUTES, "dev accuracy, %", tuple(series)))
    return found


def _seen(measurement: Measurement, steps: float) -> tuple[float, float | None, float | None]:
    """How many steps the run has made by then, the best look so far, and the best with the next one."""
    steps = min(steps, measurement.settings["steps"])
    looks = [(step, 100 * accuracy) for step, _, accuracy in measurement.values["curves"]["dev"]]
    before = [accuracy for step, accuracy in looks if step <= steps]
    after = [accuracy for step, accuracy in looks if step > steps]
    return steps, max(before, default=None), max(before + after[:1], default=None)


def claim(found: Table | None) -> Claim:
    """Fastmax1 against softmax with PyTorch's kernel, the faster of its two, where softmax was trained for long enough."""
    if found is None:
        return untested(*CLOCK, "no task has both trainings and timed steps of the same kind in this folder")
    early, late, ended, ways = [], [], [], []
    for task, of_task in _by_task(found).items():
        rows = {row.attention: row for row in of_task}
        theirs = rows["softmax"]
        early.append(_said_early(task, rows))
        if any(_went_on(row, theirs) for row in of_task):
            late.append(
                _said(task, {name: row.late for name, row in rows.items() if _went_on(row, theirs)}, theirs.late)
            )
        if "fastmax1" not in rows or theirs.late_steps < ENOUGH:
            continue
        ours = rows["fastmax1"]
        ways.append(_judged(ours, theirs))
        if not _went_on(ours, theirs) and _gap(ours, ours.late, theirs.late) < -1:
            ended.append(_said(task, {"fastmax1": ours.late}, theirs.late))
    text = (
        f"Best dev accuracy in the time of fastmax2's run, softmax in the middle of its schedule: {'; '.join(early)}."
    )
    if late:
        text += f" In the time of softmax's run, of those that went on: {'; '.join(late)}."
    if ended:
        text += f" Not trained for as long as softmax, which is ahead of it in the end: {'; '.join(ended)}."
    return Claim(*CLOCK, _verdict(ways, all_went_on=not ended), text)


def _by_task(found: Table) -> dict[str, list[Row]]:
    tasks: dict[str, list[Row]] = {}
    for row in (Row(*cells) for cells in found.rows):
        tasks.setdefault(row.task, []).append(row)
    return tasks


def _went_on(row: Row, softmax: Row) -> bool:
    """Whether it has had more steps than softmax, in no more time."""
    return row.late_steps > softmax.late_steps


def _judged(ours: Row, theirs: Row) -> int:
    """1 where Fastmax1 is ahead when it has ended, or when softmax has, and behind at neither; -1 the other way round.

    What counts as ahead is beyond what softmax had at its next look, even a later one; a run that was not looked at by then
    is taken to guess.
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


def _said_early(task: str, rows: dict[str, Row]) -> str:
    theirs = rows["softmax"]
    bound = "" if theirs.early == theirs.early_next else f" (at its next look {theirs.early_next:.1f})"
    return _said(task, {name: row.early for name, row in rows.items()}, theirs.early) + bound


def _said(task: str, seen: dict[str, float | None], softmax: float | None) -> str:
    """Softmax last, so that a bound of it can follow."""
    shown = {name: one for name, one in seen.items() if name not in (PLAIN, "softmax")} | {"softmax": softmax}
    return f"{task}: " + ", ".join(f"{n} {'none yet' if a is None else f'{a:.1f} %'}" for n, a in shown.items())


def _gap(row: Row, ours: float | None, theirs: float | None) -> float:
    """In units of what decides."""
    a, b = (100 / shape(row.task).classes if seen is None else seen for seen in (ours, theirs))
    return (a - b) / row.noise
