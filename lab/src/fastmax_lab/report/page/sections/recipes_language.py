"""The recipes of recall on language: validation losses, rates tuned alike."""

from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page.parts import Chart, Finding, PageBlock, Section
from fastmax_lab.report.page.results import Results, group
from fastmax_lab.report.page.tuned import compared, dots, edges, tuned

NAME = "recipes-language"
TITLE = "The recipes on language (ours)"


def section(results: Results) -> Section:
    """Draw a block for each text and length."""
    measurements = results.get(NAME, [])
    if not measurements:
        return Section(NAME, TITLE)
    s = measurements[0].settings
    intro = (
        f"The recipes of recall from afar as language models of {s['layers']} layers on bytes, in equal "
        "steps. Each has the learning rate that is best for it on the validation text with seed 0, whose loss is "
        "reported. The dotted line is softmax; gaps are differences from it with the same seed."
    )
    blocks, said = [], []
    for (text, tokens, width), found in group(measurements, _setup).items():
        runs = tuned(found, lambda d: d.values["val_loss"], lambda d: d.values["val_loss"])
        if not runs:
            continue
        name, where = f"{NAME}-{text}-{tokens}-{width}", f"{text}, {tokens:,} tokens, width {width}"
        table = compared(runs, name, f"Validation loss, {where}", "nats per character", decimals=3)
        rows = {row[0]: row for row in table.rows}
        chart = Chart(
            name, where, "validation loss, nats per character", "", dots(table),
            categories=tuple(rows), reference=rows["softmax"][2] if "softmax" in rows else None,
        )  # fmt: skip
        blocks.append(PageBlock(where, (chart,), (Finding(edges(runs)),), (table,)))
        said.append(f"on {where}, {table.rows[0][0]} has the lowest loss, {table.rows[0][2]:.3f}")
    return Section(NAME, TITLE, intro, tuple(blocks), (), f"{NAME}: {'; '.join(said)}" if said else "")


def _setup(measurement: Measurement) -> tuple[str, int, int]:
    s = measurement.settings
    return s["text"], s["tokens"], s["width"]
