"""The report of a folder: one page that needs no network, every chart as SVG, PNG and CSV, every table as CSV."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path

from fastmax._atomic_file import write_whole
from fastmax_lab.report.page import html
from fastmax_lab.report.page.drawing import draw, for_page
from fastmax_lab.report.page.map_panel import Panel, draw_panel
from fastmax_lab.report.page.parts import Chart, Section, Table
from fastmax_lab.report.page.results import Results, load
from fastmax_lab.report.page.sections import (
    dropout,
    exactness,
    language,
    lra,
    lra_settings,
    lra_small,
    lra_speed,
    maps,
    order_one,
    recall,
    recall_far,
    recipes_language,
    scaling,
)

SECTIONS = (
    scaling, maps, dropout, lra, lra_small, lra_speed, language, lra_settings, order_one, recall, recall_far,
    recipes_language, exactness,
)  # fmt: skip
PAGE, FIGURES, TABLES = "index.html", "figures", "tables"
KINDS = ("svg", "png", "csv")


@dataclass(frozen=True)
class Report:
    """The place of a written page, and a line on each section."""

    page: Path
    headlines: tuple[str, ...]


def build(folder: Path, out: Path) -> Report:
    """Draw the results in `folder` into `out`. Nothing is measured."""
    results = load(folder)
    parts = sections(results)
    shown = [*tables(parts), html.runs(results)]
    _check_names([*(chart.name for chart in charts(parts)), *(table.name for table in shown)])
    figures = {chart.name: _figure(chart) for chart in charts(parts)}
    files = {f"{FIGURES}/{name}.{kind}": data for name, kinds in figures.items() for kind, data in kinds.items()}
    files |= {f"{TABLES}/{table.name}.csv": as_csv(table).encode() for table in shown}
    drawn = {name: for_page(kinds["svg"], name) for name, kinds in figures.items()}
    is_again = (out / PAGE).exists()
    _write(out, files | {PAGE: html.page(parts, drawn, results).encode()})
    if is_again:
        _remove_others(out, files)
    return Report(out / PAGE, tuple(part.headline for part in parts if part.headline))


def sections(results: Results) -> list[Section]:
    return [one.section(results) for one in SECTIONS]


def charts(parts: list[Section]) -> list[Chart]:
    leads = [lead.chart for part in parts for lead in part.leads]
    return leads + [chart for part in parts for block in part.blocks for chart in block.charts]


def tables(parts: list[Section]) -> list[Table]:
    return [html.conclusions(parts), *(table for part in parts for block in part.blocks for table in block.tables)]


def as_csv(table: Table) -> str:
    """Return a table as CSV, with its numbers in full and not as they are shown."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.strip() for column in table.columns])
    writer.writerows(["" if cell is None else cell for cell in row] for row in table.rows)
    return text.getvalue()


def _check_names(names: list[str]) -> None:
    """Check that names from the results can be names of files."""
    for name in names:
        if not name or name.startswith(".") or any(letter in name for letter in "/\\\0"):
            raise ValueError(f"{name!r}, made of names in the results, cannot be the name of a file")


def _figure(chart: Chart) -> dict[str, bytes]:
    svg, png = draw_panel(chart) if isinstance(chart, Panel) else draw(chart)
    return {"svg": svg, "png": png, "csv": as_csv(chart.data()).encode()}


def _write(out: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        write_whole(out / name, data)


def _remove_others(out: Path, files: dict[str, bytes]) -> None:
    """Remove figures and tables that an earlier report had and this one has not."""
    for folder in (out / FIGURES, out / TABLES):
        for path in folder.glob("*.*"):
            if path.suffix[1:] in KINDS and path.is_file() and path.relative_to(out).as_posix() not in files:
                path.unlink()
