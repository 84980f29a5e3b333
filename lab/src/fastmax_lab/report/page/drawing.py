"""Charts drawn by matplotlib in one style: for files on white, and for the page in the colours of its reader."""

import re
from io import BytesIO
from math import pi
from typing import Any

from fastmax_lab.report.page.parts import Chart, Series

INK, GRID = "#1b1f24", "#d5d9de"
"""Colours that the page replaces by those of the reader's theme."""
STYLES = {
    "vanilla": ("#8a8f98", "v"),
    "softmax, plain formula": ("#8a8f98", "v"),
    "softmax": ("#1f78c8", "s"),
    "softmax, gated": ("#56a5e0", "P"),
    "softmax, standardized": ("#6f8fd8", "X"),
    "fastmax1": ("#d99a00", "^"),
    "fastmax2": ("#d9480f", "o"),
    "fastmax2, paper's scale": ("#8e44ad", "D"),
    "fastmax2, as released": ("#6b4423", "h"),
    "fastmax2, learned scale": ("#c2255c", "p"),
    "fastmax2, gated": ("#0b9b6d", "*"),
    "fastmax2, decay": ("#3fae49", "<"),
    "fastmax4": ("#a33ea1", ">"),
    "linear": ("#c86aa8", "d"),
    "performer": ("#35a7c2", "H"),
    "reformer": ("#9b7b3a", "8"),
    "informer": ("#d16d6d", "X"),
    "none": ("#52606d", "v"),
    "standard": ("#0f766e", "D"),
    "1d": ("#b45309", "s"),
    "quadratic": ("#7c3aed", "^"),
}
"""The colour and the marker of a contestant, the same in every figure."""
_MORE = (("#475569", "o"), ("#b45309", "s"), ("#0f766e", "D"), ("#7c3aed", "^"), ("#9f1239", "v"), ("#4d7c0f", "P"))
SIZE, SMALL = (4.3, 3.1), (3.3, 2.75)
CIRCLE = 900
"""The area of the largest circle, in square points."""
LEGEND = 36
"""Letters of three names that fit beside one another below such a chart; a wider legend would cover the label of y."""
MISSING = "over memory limit"
"""The meaning of an x, in the legend."""
CROSS: dict[str, Any] = {"markersize": 8, "markeredgewidth": 2.2}
STYLE: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9.5,
    "svg.fonttype": "none",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.7,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.constrained_layout.use": True,
}


def draw(chart: Chart) -> tuple[bytes, bytes]:
    """Draw a chart on white, as SVG and PNG."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    style: Any = STYLE | {"svg.hashsalt": chart.name}
    with matplotlib.rc_context(style):
        width, height = SMALL if chart.small else SIZE
        height = max(height, 0.9 + 0.27 * len(chart.categories)) if chart.categories else height
        figure = Figure(figsize=(width, height), facecolor="white")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        for number, series in enumerate(chart.series):
            _series(axes, chart, series, number)
        _axes(axes, chart)
        if sum(not one.guide for one in chart.series) > 1 and not _has_names(chart):
            handles, labels = axes.get_legend_handles_labels()
            if any(one.missing for one in chart.series):
                handles.append(Line2D([], [], color=INK, linestyle="none", marker="x", **CROSS))
                labels.append(MISSING)
            columns = 3 if sum(sorted(map(len, labels))[-3:]) <= LEGEND * width / SIZE[0] else 2
            figure.legend(
                handles, labels, loc="outside lower center", ncols=min(columns, len(labels)), columnspacing=1.2
            )
        files = []
        for kind, options in (("svg", {"metadata": {"Date": None}}), ("png", {"dpi": 160})):
            buffer = BytesIO()
            figure.savefig(buffer, format=kind, **options)
            files.append(buffer.getvalue())
    return files[0], files[1]


def look(label: str, number: int) -> tuple[str, str]:
    """Return colour and marker of a label. A variant such as `softmax, plain formula` has those of softmax."""
    own = STYLES.get(label, STYLES.get(label.rsplit(", ", 1)[0]))
    return _MORE[number % len(_MORE)] if own is None else own


def _has_names(chart: Chart) -> bool:
    """Return True for a chart that needs no legend: every series is a row of dots or a circle with its name beside it."""
    return _circles(chart) or chart.categories == tuple(one.label for one in chart.series)


def _circles(chart: Chart) -> bool:
    """Return True for a chart of circles, each with its name beside it: in a legend they would cover one another."""
    return any(one.area for one in chart.series)


def _series(axes: Any, chart: Chart, one: Series, number: int) -> None:
    colour, marker = look(one.label, number)
    named = {"color": colour, "label": one.label}
    if one.guide:
        axes.plot(one.x, one.y, color=INK, linewidth=0.9, linestyle=(0, (1, 2)), alpha=0.7)
        axes.annotate(one.label, (one.x[-1], one.y[-1]), (-3, 3), textcoords="offset points", fontsize=8, ha="right")
        return
    if one.raw:
        axes.plot(*zip(*one.raw, strict=True), linestyle="none", marker=".", markersize=2, color=colour, alpha=0.25)
    deviation = [0.0 if d is None else d for d in one.deviation]
    if one.area:
        unit = CIRCLE / max(area for other in chart.series for area in other.area)
        axes.scatter(one.x, one.y, s=[unit * area for area in one.area], alpha=0.55, linewidths=0, **named)
        axes.scatter(one.x, one.y, s=6, color=colour)
        for x, y, area in zip(one.x, one.y, one.area, strict=True):
            above = (0, (unit * area / pi) ** 0.5 + 2)
            axes.annotate(one.label, (x, y), above, textcoords="offset points", ha="center", fontsize=8)
    elif chart.categories:
        axes.errorbar(one.x, one.y, xerr=deviation or None, fmt=marker, capsize=2.5, linewidth=1.2, **named)
    else:
        style = "none" if not one.line else "--" if one.dashed else "-"
        crowded = one.line and len(one.x) > 24
        axes.plot(one.x, one.y, linestyle=style, marker="" if crowded else marker, **named)
        if any(deviation):
            low, high = ([y + sign * d for y, d in zip(one.y, deviation, strict=True)] for sign in (-1, 1))
            axes.fill_between(one.x, low, high, color=colour, alpha=0.16, linewidth=0)
    for x in one.missing:  # above the frame, where no point is: there is no number to go with it
        place = {"transform": axes.get_xaxis_transform(), "clip_on": False, "zorder": 5}
        axes.plot([x], [1.03], "x", color=colour, **CROSS, **place)


def _axes(axes: Any, chart: Chart) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    if chart.x_log:
        axes.set_xscale("log", base=chart.x_base)
    if chart.x_log and chart.x_base == 10:  # about one decade: powers of ten alone would be one tick or two
        axes.xaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    if _circles(chart):
        axes.margins(0.22)
    if chart.y_log:
        axes.set_yscale("log")
    if any(one.raw for one in chart.series):  # single batches are far apart: they may leave the frame
        drawn = [y for one in chart.series for y in one.y]
        margin = 0.25 * (max(drawn) - min(drawn))
        axes.set_ylim(min(drawn) - margin, max(drawn) + margin)
    if chart.reference is not None:
        line = axes.axvline if chart.categories else axes.axhline
        line(chart.reference, color=INK, linewidth=0.9, linestyle=":")
    if chart.categories:
        axes.set_yticks(range(len(chart.categories)), chart.categories)
        axes.invert_yaxis()


def for_page(svg: bytes, name: str) -> str:
    """Return the SVG for use inside the page: no preamble, no background, the reader's colours, and unique ids."""
    text = svg.decode()
    text = text[text.index("<svg") :]
    own = re.sub(r"[^\w-]+", "-", name)
    text = re.sub(r'(\sid="|url\(#|href="#)', rf"\g<1>{own}-", text)
    text = text.replace("fill: #ffffff; stroke: none", "fill: none; stroke: none")
    text = text.replace("fill: #ffffff", "fill: none")
    return text.replace(INK, "currentColor").replace(GRID, "var(--grid)")
