"""Attention maps in a grid on one colour scale: softmax beside Fastmax2, as in Figure 4, and every head of a layer."""

import base64
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np

from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page.drawing import STYLE
from fastmax_lab.report.page.parts import Chart, Table

SIZE, EACH = (4.6, 2.5), (1.5, 1.35)
"""Inches of a figure of two maps, and of each map of a larger one."""
LEVELS = 65535
"""Maps are kept as whole numbers up to this."""


@dataclass(frozen=True)
class Map:
    """Weights (queries, keys) of one head on one sample, and the head's share of effective keys."""

    label: str
    layer: int
    head: int
    keys: float
    weights: np.ndarray


@dataclass(frozen=True)
class Panel(Chart):
    """Maps row by row, `across` in a row."""

    maps: tuple[Map, ...] = ()
    across: int = 2

    def data(self) -> Table:
        rows = tuple(
            (one.label, one.layer, one.head, query, key, float(weight))
            for one in self.maps
            for (query, key), weight in np.ndenumerate(one.weights)
        )
        return Table(self.name, self.title, ("attention", "layer", "head", "query", "key", "weight"), rows)


def typical(measurement: Measurement, layer: int) -> int:
    """Return the head in the middle of its layer by its share of effective keys; of two, the more local one."""
    keys = [head["keys"] for head in measurement.values["locality"][layer]]
    return sorted(range(len(keys)), key=keys.__getitem__)[(len(keys) - 1) // 2]


def map_of(measurement: Measurement, layer: int, head: int, label: str) -> Map:
    """Return the map of one head on the first sample."""
    result = measurement.values
    levels = np.frombuffer(base64.b64decode(result["maps"][layer][0][head]), "<u2")
    weights = levels.reshape(result["tokens"], result["tokens"]) / LEVELS
    return Map(label, layer + 1, head + 1, result["locality"][layer][head]["keys"], weights)


def draw_panel(panel: Panel) -> tuple[bytes, bytes]:
    """Draw a panel on white, as SVG and PNG."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    style: Any = STYLE | {"svg.hashsalt": panel.name, "axes.grid": False, "font.size": 8.5}
    with matplotlib.rc_context(style):
        rows = -(-len(panel.maps) // panel.across)
        size = SIZE if rows == 1 else (0.6 + EACH[0] * panel.across, 0.4 + EACH[1] * rows)
        figure = Figure(figsize=size, facecolor="white")
        FigureCanvasAgg(figure)
        grid = figure.subplots(rows, panel.across, squeeze=False, sharex=True, sharey=True)
        axes = list(grid.flat)
        # half of the weights are far below the largest: on a straight scale they would all look like 0
        norm = PowerNorm(0.5, 0.0, max(float(one.weights.max()) for one in panel.maps))
        for one, ax in zip(panel.maps, axes, strict=True):
            drawn = ax.imshow(one.weights, norm=norm, cmap="viridis", interpolation="none")
            place = f"layer {one.layer}, head {one.head}" if rows == 1 else f"head {one.head}"
            ax.set_title(f"{one.label}\n{place}" if rows == 1 else place, fontsize=8.5)
        for ax in grid[-1]:
            ax.set_xlabel(panel.x_label)
        for row, ax in enumerate(grid[:, 0]):
            label = "" if rows == 1 else f"{panel.maps[row * panel.across].label}\n"
            ax.set_ylabel(f"{label}{panel.y_label}")
        figure.colorbar(drawn, ax=axes, shrink=0.75, label="weight")
        files = []
        for kind, options in (("svg", {"metadata": {"Date": None}}), ("png", {"dpi": 160})):
            buffer = BytesIO()
            figure.savefig(buffer, format=kind, **options)
            files.append(buffer.getvalue())
    return files[0], files[1]
