"""Attention maps side by side on one colour scale: softmax beside Fastmax2, as in Figure 4."""

import base64
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np

from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page.drawing import STYLE
from fastmax_lab.report.page.parts import Chart, Table

SIZE = (4.6, 2.5)
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
    maps: tuple[Map, ...] = ()

    def data(self) -> Table:
        rows = tuple(
            (one.label, one.layer, one.head, query, key, float(weight))
            for one in self.maps
            for (query, key), weight in np.ndenumerate(one.weights)
        )
        return Table(self.name, self.title, ("attention", "layer", "head", "query", "key", "weight"), rows)


def typical(measurement: Measurement) -> Map:
    """Return the head in the middle by its share of effective keys (of two, the more local one), on the first sample."""
    result = measurement.values
    heads = sorted(
        (head["keys"], number, h) for number, layer in enumerate(result["locality"]) for h, head in enumerate(layer)
    )
    keys, layer, head = heads[(len(heads) - 1) // 2]
    levels = np.frombuffer(base64.b64decode(result["maps"][layer][0][head]), "<u2")
    weights = levels.reshape(result["tokens"], result["tokens"]) / LEVELS
    return Map(measurement.settings["attention"], layer + 1, head + 1, keys, weights)


def draw_panel(panel: Panel) -> tuple[bytes, bytes]:
    """Draw a panel on white, as SVG and PNG."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    style: Any = STYLE | {"svg.hashsalt": panel.name, "axes.grid": False, "font.size": 8.5}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=SIZE, facecolor="white")
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, len(panel.maps), squeeze=False)[0]
        # half of the weights are far below the largest: on a straight scale they would all look like 0
        norm = PowerNorm(0.5, 0.0, max(float(one.weights.max()) for one in panel.maps))
        for one, ax in zip(panel.maps, axes, strict=True):
            drawn = ax.imshow(one.weights, norm=norm, cmap="viridis", interpolation="none")
            ax.set_title(f"{one.label}\nlayer {one.layer}, head {one.head}", fontsize=8.5)
            ax.set_xlabel(panel.x_label)
        axes[0].set_ylabel(panel.y_label)
        figure.colorbar(drawn, ax=list(axes), shrink=0.75, label="weight")
        files = []
        for kind, options in (("svg", {"metadata": {"Date": None}}), ("png", {"dpi": 160})):
            buffer = BytesIO()
            figure.savefig(buffer, format=kind, **options)
            files.append(buffer.getvalue())
    return files[0], files[1]
