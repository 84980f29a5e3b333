"""Softmax and Fastmax1 in as many steps as fit the same minutes, at tuned rates and over seeds."""

from dataclasses import replace

from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page.parts import Chart, Claim, Finding, PageBlock, Series, Table
from fastmax_lab.report.page.results import group
from fastmax_lab.report.page.sections import lra_time
from fastmax_lab.report.page.sections.lra_runs import dev_accuracy, dev_curve, test_accuracy
from fastmax_lab.report.page.tuned import Tuned, compared, edges, tuned

NAME = "lra-clock"
HOW = (
    "Each attention has a schedule of its own that ends after about the same time. Three learning rates were tried with "
    "the first seed, chosen by dev accuracy; bands are standard deviations over seeds."
)


def blocks(measurements: list[Measurement], pace: list[Measurement], claim: Claim) -> list[PageBlock]:
    """Return a block for each task: dev accuracy against minutes, and test accuracy at the end."""
    found = []
    for task, runs in group(measurements, lambda d: str(d.settings["task"])).items():
        by_name = tuned(runs, test_accuracy, dev_accuracy, higher=True)
        charts = (chart,) if (chart := _curves(task, by_name, runs, pace)) else ()
        notes = (*claim.findings, Finding(HOW), Finding(edges(by_name)))
        title = f"Accuracy at equal time, at tuned rates: {task}"
        found.append(PageBlock(title, charts, notes, (table(task, by_name, runs, pace),)))
    return found


def table(task: str, by_name: dict[str, Tuned], runs: list[Measurement], pace: list[Measurement]) -> Table:
    """Return a row for each attention, with its steps and their minutes."""
    plain = compared(
        by_name, f"{NAME}-{task}", f"Test accuracy on {task} after equal time", "test accuracy, %", decimals=1
    )
    budgets = [(_steps(name, runs), minutes(name, runs, pace)) for name in by_name]
    rows = tuple((*row, *budget) for row, budget in zip(plain.rows, budgets, strict=True))
    columns, formats = (*plain.columns, "steps", "minutes"), (*plain.formats[: len(plain.columns)], ",", ".1f")
    return replace(plain, columns=columns, rows=rows, formats=formats, folded=False)


def share_of_time(runs: list[Measurement], pace: list[Measurement]) -> float | None:
    """Return the time of Fastmax1's training over that of softmax's, by the medians of a quiet machine."""
    ours, theirs = (minutes(name, runs, pace) for name in ("fastmax1", "softmax"))
    return None if ours is None or theirs is None else ours / theirs


def minutes(attention: str, runs: list[Measurement], pace: list[Measurement]) -> float | None:
    """Return the minutes of an attention's training, or None if its steps were not timed."""
    of_step = lra_time.seconds(runs[0], pace).get(attention)
    return None if of_step is None else _steps(attention, runs) * of_step / 60


def _curves(task: str, by_name: dict[str, Tuned], runs: list[Measurement], pace: list[Measurement]) -> Chart | None:
    of_step, series = lra_time.seconds(runs[0], pace), []
    for name, one in by_name.items():
        own = [d for d in runs if d.settings["attention"] == name and d.settings["lr"] == one.rate]
        if name in of_step:
            steps, y, deviation = dev_curve(own)
            series.append(Series(name, tuple(step * of_step[name] / 60 for step in steps), y, deviation))
    return Chart(f"{NAME}-{task}", task, lra_time.MINUTES, "dev accuracy, %", tuple(series)) if series else None


def _steps(attention: str, runs: list[Measurement]) -> int:
    return next(int(d.settings["steps"]) for d in runs if d.settings["attention"] == attention)
