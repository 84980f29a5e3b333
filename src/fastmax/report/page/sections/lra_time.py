"""Long Range Arena at equal time (Figure 6): steps of the trainings at the price that a quiet machine had for each."""

from typing import NamedTuple

from fastmax.lra.tasks import task as shape
from fastmax.report.page.documents import Document, group
from fastmax.report.page.parts import AGREES, DIFFERS, OPEN, PARTLY, Chart, Claim, Series, Table, untested

CLOCK = ("Figure 6", "Measured by wall clock, Fastmax1 converges much faster than softmax.")
PAPER = "fastmax2, paper's scale"
ATTENTIONS = ("fastmax1", "fastmax2", PAPER, "fastmax2, gated", "softmax")
PLAIN = "softmax, plain formula"
KERNELS = {"softmax": {"softmax": "softmax", PLAIN: "vanilla"}, PAPER: {PAPER: "fastmax2"}}
"""Whose steps were timed for a training: softmax is trained once and timed in two ways, and a scale takes no time."""
MINUTES = "minutes, at the pace of an idle machine"


class Row(NamedTuple):
    """Of the table. Accuracies are the best of the looks at the dev set until then."""

    task: str
    attention: str
    price: float
    early_steps: float
    """When the run of fastmax2 ends; `late`: when that of softmax does."""
    early: float | None
    early_next: float | None
    """With the look after that: the most that it can have had in between."""
    late_steps: float
    late: float | None
    noise: float
    """What a gap must exceed to decide anything."""


def seconds(document: Document, pace: list[Document]) -> dict[str, float]:
    """Of a step, as timed on the batches of these very runs; nothing where they were not."""
    s = document["settings"]
    same = ("task", "batch", "length", "group_lengths", "attention_dropout")
    timed = next((d for d in pace if all(d["settings"][name] == s.get(name) for name in same)), None)
    return {} if timed is None else {name: t["best"] for name, t in timed["result"]["seconds"].items()}


def kernels(attention: str) -> dict[str, str]:
    """The names under which a training is shown, and whose steps were timed for each."""
    return KERNELS.get(attention, {attention: attention})


def table(equal: list[Document], longer: list[Document], pace: list[Document]) -> Table | None:
    """The best dev accuracy that each has seen when the run of fastmax2 ends, and when that of softmax does."""
    rows = []
    for task, runs in group((d for d in equal if not d["settings"]["seed"]), lambda d: d["settings"]["task"]).items():
        price = seconds(runs[0], pace)
        by_name = {d["settings"]["attention"]: d for d in runs}
        if not price or not {"softmax", "fastmax2"} <= by_name.keys():
            continue
        price = {name: one / price["fastmax2"] for name, one in price.items()}
        more = {d["settings"]["attention"]: d for d in longer if d["settings"]["task"] == task}
        steps = by_name["softmax"]["settings"]["steps"]
        noise = 200 * (2 * 0.25 / by_name["softmax"]["result"]["test"]["examples"]) ** 0.5
        for name in ATTENTIONS:
            for shown, kernel in kernels(name).items():
                if name not in by_name or kernel not in price:
                    continue
                early = _seen(by_name[name], steps / price[kernel])
                late = _seen(more.get(name, by_name[name]), steps * price["softmax"] / price[kernel])
                rows.append(Row(task, shown, price[kernel], *early, *late[:2], noise))
    if not rows:
        return None
    columns = (
        "task",
        "attention",
        "time of a step, fastmax2 = 1",
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
        ("", "", ".2f", ",.0f", ".2f", ".2f", ",.0f", ".2f", ".1f"),
    )


def charts(equal: list[Document], longer: list[Document], pace: list[Document]) -> list[Chart]:
    """Dev accuracy against the minutes that it takes; those that went on longer have a line of their own."""
    found = []
    for task, runs in group(equal, lambda d: d["settings"]["task"]).items():
        of_step = seconds(runs[0], pace)
        series = []
        for d in (*runs, *(d for d in longer if d["settings"]["task"] == task)):
            name, steps = d["settings"]["attention"], d["settings"]["steps"]
            for shown, kernel in kernels(name).items():
                points = d["result"]["curves"]["dev"]
                if d["settings"]["seed"] or name not in ATTENTIONS or kernel not in of_step or not points:
                    continue
                label = shown if steps == runs[0]["settings"]["steps"] else f"{shown}, {steps:,} steps"
                x, y = zip(*((step * of_step[kernel] / 60, 100 * seen) for step, _, seen in points), strict=True)
                series.append(Series(label, x, y, dashed=label != name))
        if series:
            found.append(Chart(f"lra-accuracy-{task}-clock", task, MINUTES, "dev accuracy, %", tuple(series)))
    return found


def _seen(document: Document, steps: float) -> tuple[float, float | None, float | None]:
    """How many steps the run has made by then, the best look so far, and the best with the next one."""
    steps = min(steps, document["settings"]["steps"])
    looks = [(step, 100 * accuracy) for step, _, accuracy in document["result"]["curves"]["dev"]]
    before = [accuracy for step, accuracy in looks if step <= steps]
    after = [accuracy for step, accuracy in looks if step > steps]
    return steps, max(before, default=None), max(before + after[:1], default=None)


def claim(found: Table | None) -> Claim:
    """Against PyTorch's kernel, the faster of softmax's two. Softmax has what it had at its next look, even a later one;
    a Fastmax that nobody has looked at yet counts as guessing.

    A Fastmax that ended long before softmax, and behind what softmax then has, was not shown to be slower, nor faster.
    """
    if found is None:
        return untested(*CLOCK, "no task has both trainings and timed steps of the same kind in this folder")
    early, late, gaps, ended = [], [], [], []
    for task, of_task in group((Row(*row) for row in found.rows), lambda row: row.task).items():
        rows = {row.attention: row for row in of_task}
        ours, theirs = rows.get("fastmax1", rows["fastmax2"]), rows["softmax"]
        shown = {name: row.early for name, row in rows.items()}
        bound = "" if theirs.early == theirs.early_next else f" (at its next look {theirs.early_next:.1f})"
        early.append(_said(task, shown) + bound)
        gaps.append(_gap(task, ours.early, theirs.early_next, theirs.noise))
        at_the_end = _gap(task, ours.late, theirs.late, theirs.noise)
        shown = {name: row.late for name, row in rows.items()}
        if any(row.late_steps > theirs.late_steps for row in of_task):  # else all but softmax ended long ago
            late.append(_said(task, shown))
            gaps.append(at_the_end)
        elif at_the_end < -1:
            ended.append(_said(task, {name: shown[name] for name in (ours.attention, "softmax")}))
    ahead, behind = (any(sign * gap > 1 for gap in gaps) for sign in (1, -1))
    verdict = PARTLY if ahead and (behind or ended) else AGREES if ahead else DIFFERS if behind else OPEN
    text = (
        f"Best dev accuracy in the time of fastmax2's run, softmax in the middle of its schedule: {'; '.join(early)}."
    )
    if late:
        text += f" In the time of softmax's run, where others went on as long: {'; '.join(late)}."
    if ended:
        text += f" Not trained for as long as softmax, which is ahead of it in the end: {'; '.join(ended)}."
    return Claim(*CLOCK, verdict, text)


def _said(task: str, seen: dict[str, float | None]) -> str:
    """Softmax last, so that a bound of it can follow."""
    names = [name for name in seen if name not in (PLAIN, "softmax")] + ["softmax"]
    return f"{task}: " + ", ".join(f"{n} {'none yet' if seen[n] is None else f'{seen[n]:.1f} %'}" for n in names)


def _gap(task: str, ours: float | None, theirs: float | None, noise: float) -> float:
    """In units of what decides."""
    a, b = (100 / shape(task).classes if seen is None else seen for seen in (ours, theirs))
    return (a - b) / noise
