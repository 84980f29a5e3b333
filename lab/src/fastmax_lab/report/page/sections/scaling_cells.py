"""The measured cells that the parts of the section on scaling share, and their growth."""

from collections.abc import Sequence
from math import log
from statistics import linear_regression, median
from typing import Any

from fastmax.plan import cheaper_form
from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page.parts import AGREES, DIFFERS, PARTLY

SOFTMAX = {"vanilla": "the plain formula", "softmax": "PyTorch's kernel"}
ORDERS = ("fastmax1", "fastmax2")
FORWARD, BOTH = "forward", "forward + backward"
Cell = dict[str, Any]
LONGEST = 4
"""Number of lengths that an exponent is fitted to: two would show the noise of the machine."""
LINEAR_BELOW, QUADRATIC_ABOVE = 1.3, 1.6
"""Exponents that are taken for 1, and for 2."""


def cells_of(measurement: Measurement, is_causal: bool, kind: str) -> list[Cell]:
    return [c for c in measurement.values["time"] if c["is_causal"] == is_causal and c["pass"] == kind]


def mask_name(is_causal: bool) -> str:
    return "masked" if is_causal else "unmasked"


def is_factorized(cell: Cell, name: str, head_dim: int) -> bool:
    n, order = cell["tokens"], int(name.removeprefix("fastmax"))
    return cheaper_form(n, n, head_dim, head_dim, order, cell["is_causal"]) == "factorized"


def exponent(points: Sequence[tuple[int, float]]) -> tuple[int, int, float]:
    x, y = ([log(point[i]) for point in points] for i in (0, 1))
    return points[0][0], points[-1][0], linear_regression(x, y).slope


def growth_verdict(ours: list[float], theirs: list[float]) -> str:
    if max(ours) < LINEAR_BELOW and min(theirs) > QUADRATIC_ABOVE:
        return AGREES
    return DIFFERS if median(ours) >= LINEAR_BELOW else PARTLY
