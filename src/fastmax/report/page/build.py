"""Writes the report of a folder: one page that needs no network, every chart as SVG, PNG and CSV, every table as CSV."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path

from fastmax._atomic_file import write_whole
from fastmax.report.page import documents, html
from fastmax.report.page.documents import Results
from fastmax.report.page.drawing import draw, for_page
from fastmax.report.page.parts import Chart, Section, Table
from fastmax.report.page.sections import (
    dropout,
    exactness,
    language,
    lra,
    lra_settings,
    lra_speed,
    maps,
    recall,
    scaling,
)

SECTIONS = (scaling, maps, dropout, lra, lra_speed, language, lra_settings, recall, exactness)
PAGE, FIGURES, TABLES = "index.html", "figures", "tables"


@dataclass(frozen=True)
class Report:
    """Where the page is, and a line on each section."""

    page: Path
    headlines: tuple[str, ...]


def build(folder: Path, out: Path) -> Report:
    """Of the results in `folder`; measures nothing."""
    results = documents.load(folder)
    parts = sections(results)
    for name in (FIGURES, TABLES):
        (out / name).mkdir(parents=True, exist_ok=True)
    drawn = {chart.name: _write_chart(chart, out / FIGURES) for chart in charts(parts)}
    for table in tables(parts):
        write_whole(out / TABLES / f"{table.name}.csv", as_csv(table).encode())
    write_whole(out / PAGE, html.page(parts, drawn, results).encode())
    return Report(out / PAGE, tuple(part.headline for part in parts if part.headline))


def sections(results: Results) -> list[Section]:
    return [one.section(results) for one in SECTIONS]


def charts(parts: list[Section]) -> list[Chart]:
    return [chart for part in parts for block in part.blocks for chart in block.charts]


def tables(parts: list[Section]) -> list[Table]:
    return [html.conclusions(parts), *(table for part in parts for block in part.blocks for table in block.tables)]


def as_csv(table: Table) -> str:
    """The numbers in full, not as they are shown."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.strip() for column in table.columns])
    writer.writerows(["" if cell is None else cell for cell in row] for row in table.rows)
    return text.getvalue()


def _write_chart(chart: Chart, folder: Path) -> str:
    svg, png = draw(chart)
    write_whole(folder / f"{chart.name}.svg", svg)
    write_whole(folder / f"{chart.name}.png", png)
    write_whole(folder / f"{chart.name}.csv", as_csv(chart.data()).encode())
    return for_page(svg)
