"""Order 1 at scale 1, as printed: negative denominators and what trainings make of them."""

from statistics import mean

from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page.parts import Chart, Finding, PageBlock, Section, Series, Table
from fastmax_lab.report.page.results import Results, group, spread

NAME = "order-one"
TITLE = "Order 1 as printed: scale 1 (equation 8)"
LABELS = {"1": "scale 1, as printed", "1/D": "scale 1/D"}


def section(results: Results) -> Section:
    measurements = results.get(NAME, [])
    if not measurements:
        return Section(NAME, TITLE)
    blocks = [_block(data, found) for data, found in group(measurements, lambda d: str(d.settings["data"])).items()]
    intro = (
        "With standardized queries and keys s lies between -D and D, so that 1 + s can be negative, and so can its sum over "
        "the keys, the denominator. Fastmax1 was trained so, and at scale 1/D, where no weight is negative; mean and "
        "standard deviation over seeds."
    )
    said = " ".join(block.findings[0].text for block in blocks)
    return Section(NAME, TITLE, intro, tuple(blocks), (), f"order 1: {said}")


def _block(data: str, measurements: list[Measurement]) -> PageBlock:
    by_scale = group(measurements, lambda d: str(d.settings["scale"]))
    rows = []
    for scale, found in by_scale.items():
        ended = [d for d in found if d.values["diverged"] is None]
        losses = spread([d.values["train_loss"] for d in ended]) if ended else (None, None)
        start, end = (100 * mean(d.values["looks"][at]["negative"] for d in found) for at in (0, -1))
        norms = [norm for d in ended for _, norm in d.values["gradient_norms"]]
        least = min(look["smallest"] for d in found for look in d.values["looks"])
        largest = max(norms) if norms else None
        rows.append((LABELS[scale], len(found), len(found) - len(ended), *losses, start, end, least, largest))
    table = Table(
        f"order-one-{data}",
        f"What order 1 learns, {data}",
        ("scale", "seeds", "diverged", "training loss at the end", "±", "denominators ≤ 0 at the start, %",
         "at the end, %", "smallest |denominator| / N", "largest gradient norm"),
        tuple(rows),
        ("", "", "", ".3f", ".3f", ".1f", ".1f", ".1e", ".3g"),
    )  # fmt: skip
    return PageBlock(data, _charts(data, by_scale), (Finding(_said(data, table)),), (table,), columns=None)


def _said(data: str, table: Table) -> str:
    sentences = [
        f"On {data} the training loss at {row[0].removesuffix(', as printed')} ends at {row[3]:.3f}, with {row[6]:.0f} % "
        "of the denominators not positive."
        for row in table.rows
        if row[3] is not None
    ]
    return " ".join(sentences) or f"On {data} every training diverged."


def _charts(data: str, by_scale: dict[str, list[Measurement]]) -> tuple[Chart, ...]:
    losses: list[Series] = []
    shares: list[Series] = []
    for scale, found in by_scale.items():
        curves = [d.values["loss_curve"] for d in found if d.values["diverged"] is None]
        looks = [[(look["step"], 100 * look["negative"]) for look in d.values["looks"]] for d in found]
        for series, lines in ((losses, curves), (shares, looks)):
            points = list(zip(*lines, strict=False))
            if points:
                y, deviation = zip(*(spread([value for _, value in at]) for at in points), strict=True)
                series.append(Series(LABELS[scale], tuple(at[0][0] for at in points), y, deviation))
    return (
        Chart(f"order-one-{data}-loss", f"{data}: loss", "training steps", "training loss, nats", tuple(losses)),
        Chart(f"order-one-{data}-share", f"{data}: denominators", "training steps", "≤ 0, %", tuple(shares)),
    )
