"""The small Table 1: every attention on Image at 16 x 16 pixels, trained for ten epochs, tuned alike."""

from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page.parts import Chart, PageBlock, Section, Series, Table
from fastmax_lab.report.page.results import Results, group, spread
from fastmax_lab.report.page.sections.lra_runs import dev_curve
from fastmax_lab.report.page.tuned import gap

NAME = "lra-small"
TITLE = "A small Table 1: Image at 16 × 16 pixels"


def section(results: Results) -> Section:
    whole, tuning = parts(results.get(NAME, []))
    if not tuning and not whole:
        return Section(NAME, TITLE)
    intro = (
        "Every attention has the same three learning rates, each tried with a twentieth of the steps, and the one of the "
        "highest dev accuracy then takes all steps, with up to three seeds. A dash is a training that is not finished."
    )
    charts = (_curves(whole),) if whole else ()
    table = accuracies(whole, tuning)
    return Section(NAME, TITLE, intro, (PageBlock("", charts, (), (table,)),))


def parts(measurements: list[Measurement]) -> tuple[list[Measurement], list[Measurement]]:
    """Return the whole trainings and those that tune, which their names tell apart."""
    whole = [d for d in measurements if "-whole-" in d.name]
    return whole, [d for d in measurements if "-tuning-" in d.name]


def accuracies(whole: list[Measurement], tuning: list[Measurement]) -> Table:
    """Return a row for each attention that was tried; accuracies are those of whole trainings."""
    by_name = group(whole, lambda d: str(d.settings["attention"]))
    softmax = _by_seed(by_name.get("softmax", []))
    rows = []
    for name, tried in group(tuning, lambda d: str(d.settings["attention"])).items():
        values = _by_seed(by_name.get(name, []))
        found = spread(list(values.values())) if values else (None, None)
        far = gap(values, softmax) if name != "softmax" else None
        gaps = (None, None) if far is None else (far.mean, far.error)
        best = max(tried, key=lambda d: float(d.values["dev_accuracy"]))
        rates = len({d.settings["lr"] for d in tried})
        rows.append((name, best.settings["lr"], rates, *found, len(values), *gaps))
    rows.sort(key=lambda row: -(row[3] or 0.0))
    columns = ("attention", "learning rate", "rates tried", "test accuracy, %", "±", "seeds", "gap to softmax",
               "its standard error")  # fmt: skip
    formats = ("", "g", "", ".2f", ".2f", "", "+.2f", ".2f")
    return Table("lra-small", "Test accuracy after ten epochs", columns, tuple(rows), formats, folded=False)


def _by_seed(runs: list[Measurement]) -> dict[int, float]:
    return {d.settings["seed"]: 100 * float(d.values["test"]["accuracy"]) for d in runs}


def _curves(whole: list[Measurement]) -> Chart:
    series = []
    for name, runs in group(whole, lambda d: str(d.settings["attention"])).items():
        series.append(Series(name, *dev_curve(runs)))
    return Chart("lra-small", "Image at 16 × 16 pixels", "training steps", "dev accuracy, %", tuple(series))
