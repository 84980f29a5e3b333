"""The page: sections to HTML, with its style, its scripts and the data of the explorer inside."""

import json
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastmax_lab.report.page.parts import AGREES, DIFFERS, OPEN, PARTLY, Chart, Claim, PageBlock, Section, Table
from fastmax_lab.report.page.results import Results
from fastmax_lab.report.page.words import MEANINGS, listed

CLASSES = {AGREES: "holds", DIFFERS: "fails", PARTLY: "partly", OPEN: "open"}
MANY = {AGREES: "hold", PARTLY: "hold in part", DIFFERS: "do not hold", OPEN: "remain open"}
"""Verdicts on more than one claim."""
SIGNS = {AGREES: "✓", DIFFERS: "✗", PARTLY: "◐", OPEN: "○"}
TITLE = "FAST: Factorizable Attention, reproduced"
LONG_TEXT, LONG_TABLE, WIDE_TABLE = 40, 14, 10
"""Letters from which on a cell is broken into lines; rows from which on a table is folded away, columns from which on it is
set small."""
_HERE = Path(__file__).parent


def page(sections: list[Section], drawn: dict[str, str], results: Results) -> str:
    shown = [one for one in sections if one.blocks]
    links = "".join(_link(one) for one in shown)
    body = "".join(_section(one, drawn) for one in shown)
    explorer = next((one.data for one in sections if one.name == "maps" and one.data), {})
    data = json.dumps(explorer, separators=(",", ":"), allow_nan=False).replace("</", "<\\/")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{TITLE}</title>
<link rel="icon" href="data:,">
<style>{(_HERE / "page.css").read_text()}</style>
</head>
<body>
<header>
<h1>{TITLE}</h1>
<p>{escape(_provenance(results))}</p>
<nav aria-label="Sections"><a href="#headline">In short</a><a href="#conclusions">Claims</a>
<a href="#names">Names</a>{links}
<a href="#runs">What was run</a></nav>
</header>
<main>
{_headline(sections, drawn)}
{_conclusions(sections)}
{_meanings()}
{body}
{_runs(results)}
</main>
<footer><p>Drawn from the stored measurements by <code>fastmax-lab report</code>, which measures nothing.
Every figure is in figures/ as SVG, PNG and CSV, every table in tables/ as CSV.</p></footer>
<script type="application/json" id="explorer-data">{data}</script>
<script>{(_HERE / "page.js").read_text()}</script>
</body>
</html>
"""


def conclusions(sections: list[Section]) -> Table:
    rows = tuple((c.source, c.says, c.verdict, c.number, c.seeds, c.rests_on) for one in sections for c in one.claims)
    return Table(
        "conclusions",
        "What the paper says, and what was found",
        ("where", "the paper says", "on this evidence", "the number that decides", "seeds", "table or figure"),
        rows,
    )


def runs(results: Results) -> Table:
    """Return a row for every measurement: its settings, machine, date and command."""
    rows = []
    for experiment, measurements in results.items():
        for d in measurements:
            m, seed = d.machine, d.settings.get("seed")
            facts = (m.get(name) for name in ("processor", "simd", "threads", "torch", "fastmax", "date"))
            rows.append((experiment, d.name, seed, d.seconds, *facts, d.command))
    columns = (
        "experiment",
        "item",
        "seed",
        "seconds",
        "processor",
        "simd",
        "threads",
        "torch",
        "fastmax",
        "date",
        "command",
    )
    return Table("runs", "Every item of this report", columns, tuple(rows), ("", "", "", ",.0f"))


def _provenance(results: Results) -> str:
    machines = [d.machine for found in results.values() for d in found]
    processors = listed(sorted({f"{m['processor']} ({m['cores']} cores)" for m in machines}))
    torch = f"torch {listed(sorted({m['torch'] for m in machines}))}"
    dates = sorted({m["date"] for m in machines if "date" in m})
    when = [" to ".join(dict.fromkeys((dates[0], dates[-1])))] if dates else []
    return f"{', '.join([f'{len(machines)} measurements on {processors}', torch, *when])}."


def _conclusions(sections: list[Section]) -> str:
    table = conclusions(sections)
    counts = {verdict: sum(row[2] == verdict for row in table.rows) for verdict in CLASSES}
    said = listed([f"{count} {verdict if count == 1 else MANY[verdict]}" for verdict, count in counts.items() if count])
    places = _places(sections)
    cards = "".join(_card(claim, one, places) for one in sections for claim in one.claims)
    said = (
        f"Of the paper's claims {said}. Each verdict follows from the measurements by a rule in the code of the report. "
        "Where two numbers are compared, the first is Fastmax's."
    )
    return f'<section id="conclusions"><h2>Claims</h2><p>{escape(said)}</p><ul class="claims">{cards}</ul></section>'


def _headline(sections: list[Section], drawn: dict[str, str]) -> str:
    """Show the figures that matter most, with a sentence each."""
    leads = [lead for one in sections for lead in one.leads]
    figures = "".join(_chart(one.chart, drawn[one.chart.name], one.sentence) for one in leads)
    inside = f'<h2>In short</h2><div class="charts beside" style="--beside: 2">{figures}</div>'
    return f'<section id="headline">{inside}</section>' if leads else ""


def _places(sections: list[Section]) -> dict[str, str]:
    """Return the id on the page of every figure and table; a table comes before a figure of the same name."""
    charts = [chart for one in sections for block in one.blocks for chart in block.charts]
    charts += [lead.chart for one in sections for lead in one.leads]
    tables = [table for one in sections for block in one.blocks for table in block.tables]
    return {one.name: _id("figure", one.name) for one in charts} | {one.name: _id("table", one.name) for one in tables}


def _id(kind: str, name: str) -> str:
    return f"{kind}-{quote(name, safe='')}".replace("%", "_")


def _card(claim: Claim, of: Section, places: dict[str, str]) -> str:
    sign = f'<span class="verdict">{SIGNS[claim.verdict]} {escape(claim.verdict)}</span>'
    says = f'{escape(claim.says)} <span class="where">{escape(claim.source)}</span>'
    seeds = "" if claim.seeds is None else f" {claim.seeds} seed{'s' * (claim.seeds > 1)}."
    to = places.get(claim.rests_on)
    link = f' <a href="#{to}">All numbers</a>' if to else f" {_link(of)}" if of.blocks else ""
    found = f"<b>{escape(_sentence(claim.number))}</b>{seeds}{link}"
    return f'<li class="claim {CLASSES[claim.verdict]}"><p>{sign} {says}</p><p>{found}</p></li>'


def _link(to: Section) -> str:
    """Link a section by its title, without the figures of the paper that it is about."""
    return f'<a href="#{to.name}">{escape(to.title.split(" (")[0])}</a>'


def _meanings() -> str:
    said = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in MEANINGS.items())
    return f'<section id="names"><h2>Names</h2><dl>{said}</dl></section>'


def _section(one: Section, drawn: dict[str, str]) -> str:
    blocks = [_block(block, drawn) for block in one.blocks]
    if one.name == "maps" and one.data:
        blocks.insert(1, _EXPLORER)  # below the figure that stands still
    links = [f'<a href="#{_id("figure", lead.chart.name)}">{escape(lead.chart.title)}</a>' for lead in one.leads]
    above = f"<p>At the top of the page: {', '.join(links)}.</p>" if links else ""
    intro = f"<h2>{escape(one.title)}</h2><p>{escape(one.intro)}</p>{above}"
    return f'<section id="{one.name}">{intro}{"".join(blocks)}</section>'


def _block(block: PageBlock, drawn: dict[str, str]) -> str:
    figures = "".join(_chart(chart, drawn[chart.name]) for chart in block.charts)
    columns = f' style="--beside: {block.columns}"' if block.columns else ""
    kind = "charts beside" if block.columns else "charts"
    inside = f'<div class="{kind}"{columns}>{figures}</div>' if figures else ""
    inside += "".join(f'<p class="finding">{escape(_sentence(one.text))}</p>' for one in block.findings if one.text)
    inside += "".join(_table(one) for one in block.tables)
    if block.folded:
        return f"<details><summary>{escape(block.title)}</summary>{inside}</details>"
    return (f"<h3>{escape(block.title)}</h3>" if block.title else "") + inside


def _chart(chart: Chart, svg: str, sentence: str = "") -> str:
    svg = svg.replace(
        "<svg",
        f'<svg role="img" aria-label="{escape(chart.title)}: {escape(chart.y_label)} against {escape(chart.x_label)}"',
        1,
    )
    links = " ".join(
        f'<a href="figures/{quote(chart.name)}.{kind}">{kind.upper()}</a>' for kind in ("svg", "png", "csv")
    )
    caption = f"{escape(chart.title)}. {escape(_sentence(sentence))}" if sentence else escape(chart.title)
    caption = f"<figcaption>{caption} <small>{links}</small></figcaption>"
    return f'<figure id="{_id("figure", chart.name)}">{svg}{caption}</figure>'


def _sentence(text: str) -> str:
    """Begin a text with a capital, unless it begins with a name, and end it with a stop."""
    first = text.split(" ")[0]
    text = text if any(ch.isdigit() for ch in first) or first.endswith((":", ",")) else text[:1].upper() + text[1:]
    return text if text.endswith((".", "!")) else f"{text}."


def _table(table: Table) -> str:
    head = "".join(_head(table, i) for i in range(len(table.columns)))
    rows = "".join(f"<tr>{''.join(_cell(table, row, i) for i in range(len(row)))}</tr>" for row in table.rows)
    link = f'<small><a href="tables/{quote(table.name)}.csv">CSV</a></small>'
    wide = " wide" if len(table.columns) >= WIDE_TABLE else ""
    # the title is no caption, which would scroll away with the columns
    shown = (
        f'<div class="table{wide}" id="{_id("table", table.name)}" style="--columns: {len(table.columns)}">'
        f'<table data-name="{escape(table.name)}" aria-label="{escape(table.title)}">'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
    if len(table.rows) >= LONG_TABLE if table.folded is None else table.folded:
        summary = f"<summary>{escape(table.title)}: {len(table.rows)} rows</summary>"
        return f'<details>{summary}<p class="caption">{link}</p>{shown}</details>'
    return f'<p class="caption">{escape(table.title)} {link}</p>{shown}'


def _head(table: Table, column: int) -> str:
    kinds = {type(row[column]) for row in table.rows} - {type(None)}
    kind = " class=number" if kinds and kinds <= {int, float} else ""
    title = escape(table.columns[column].strip())
    return f'<th scope="col" aria-sort="none"{kind}><button type="button">{title}</button></th>'


def _cell(table: Table, row: tuple[Any, ...], column: int) -> str:
    value = row[column]
    number = isinstance(value, int | float)
    sort = f' data-value="{value!r}"' if number else ""
    kind = "number" if number or value is None else "long" if len(str(value)) > LONG_TEXT else ""
    return f"<td{f' class={kind}' if kind else ''}{sort}>{escape(table.shown(row, column))}</td>"


def _runs(results: Results) -> str:
    intro = "<p>Every measurement, with its command and machine.</p>"
    return f'<section id="runs"><h2>What was run</h2>{intro}{_table(runs(results))}</section>'


_EXPLORER = """
<div id="explorer" class="explorer">
<h3>Explorer</h3>
<div class="controls">
<label>Data <select id="ex-data"></select></label><label>Model <select id="ex-model"></select></label>
<label>Layer <select id="ex-layer"></select></label><label>Head <select id="ex-head"></select></label>
<label>Sample <select id="ex-sample"></select></label>
</div>
<div class="views">
<div class="view"><canvas id="ex-map" tabindex="0" role="application"
aria-label="Attention map: rows are queries, columns are keys. Arrow keys move."></canvas>
<p class="axis">rows: queries, columns: keys; stronger colour is more weight, each map on a scale of its own
(square root)</p></div>
<div class="view"><div id="ex-sample-view"></div></div>
</div>
<p id="ex-info" class="info" aria-live="polite">Point at the map, or focus it and use the arrow keys.</p>
</div>
"""
