"""The figure of the README, from lab/results/bench/: the cost of attention by length, and of a decoded token.

python tools/readme_figure.py            # writes docs/images/cost.svg

Its ground is transparent and its colours are readable on white and on black, so one file serves both.
"""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot
from matplotlib.axes import Axes

from fastmax_lab.measurements import read

ROOT = Path(__file__).parent.parent
GREY, SOFTMAX, FASTMAX = "#828a94", "#e0762b", "#3f8cf0"
LENGTHS = ("kernel-short", "kernel-16384-32", "kernel-16384-64")
"""One machine, one program; short and long sequences."""


def cells_of(name: str) -> list[dict[str, Any]]:
    return [d.settings | d.values for d in read(ROOT / "lab" / "results" / "bench" / f"{name}.jsonl")]


def by_length(head_dim: int, who: str) -> tuple[list[int], list[float]]:
    """Return tokens and milliseconds of causal forward + backward, order 2, best of the rounds."""
    cells = [
        cell
        for name in LENGTHS
        for cell in cells_of(name)
        if cell["head_dim"] == head_dim
        and "dtype" in cell
        and cell["order"] == 2
        and cell["is_causal"]
        and cell["backward"]
        and cell["dtype"] == "float32"
        and who in cell["seconds"]
    ]
    cells.sort(key=lambda cell: cell["tokens"])
    return [cell["tokens"] for cell in cells], [1000 * cell["seconds"][who]["best"] for cell in cells]


def by_context(who: str) -> tuple[list[int], list[float]]:
    """Return the tokens before it and the median milliseconds of one decoded token."""
    cells = [cell for cell in cells_of("decode") if cell["batch"] == 1 and cell["context"] <= 2**18]
    return [cell["context"] for cell in cells], [1000 * cell["seconds"][who]["median"] for cell in cells]


def lined(axis: Axes, xs: list[int], ys: list[float], colour: str, style: str, label: str) -> None:
    axis.loglog(xs, ys, style, color=colour, linewidth=1.8, markersize=4, label=label)


def finished(axis: Axes, title: str, xlabel: str) -> None:
    axis.set_title(title, color=GREY, fontsize=10)
    axis.set_xlabel(xlabel, color=GREY)
    axis.set_ylabel("milliseconds", color=GREY)
    axis.tick_params(colors=GREY, which="both")
    axis.grid(color=GREY, alpha=0.25, linewidth=0.5)
    for spine in axis.spines.values():
        spine.set_color(GREY)
    axis.legend(frameon=False, labelcolor=GREY, fontsize=8.5)


def draw(path: Path) -> None:
    matplotlib.rcParams.update({"svg.hashsalt": "fastmax", "font.size": 9})  # equal bytes every time
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(6.8, 3.3), layout="constrained")
    for head_dim, style in ((32, "o-"), (64, "s--")):
        lined(left, *by_length(head_dim, "sdpa"), SOFTMAX, style, f"softmax, heads of {head_dim}")
        lined(left, *by_length(head_dim, "native"), FASTMAX, style, f"Fastmax, heads of {head_dim}")
    finished(left, "causal attention, forward + backward", "tokens")
    lined(right, *by_context("softmax"), SOFTMAX, "o-", "softmax, with a cache")
    lined(right, *by_context("fastmax"), FASTMAX, "o-", "Fastmax, with a state")
    finished(right, "decoding one token, heads of 64", "tokens before it")
    figure.savefig(path, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    draw(ROOT / "docs" / "images" / "cost.svg")
