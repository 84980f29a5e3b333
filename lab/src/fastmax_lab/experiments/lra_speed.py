"""Long Range Arena speed and memory (Table 2, Figure 5): whole training steps at full length, contestants in turns."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fastmax_lab.baselines import SEVEN
from fastmax_lab.bench import lra as bench
from fastmax_lab.bench.lra import LayerCell
from fastmax_lab.experiments.items import Item, Workspace
from fastmax_lab.measurements import Measurement, slug

NAME = "lra-speed"
QUICK = ("vanilla", "softmax", "fastmax1", "fastmax2")


def items(budget: str, found: Sequence[Measurement]) -> list[Item]:  # noqa: ARG001
    if budget == "quick":
        return [item(LayerCell("text", 1, 0.1), QUICK, rounds=2, cost=25.0)]
    return [item(cell, ("vanilla", *SEVEN), rounds=3, cost=150.0) for cell in bench.cells(quick=False)]


def item(cell: LayerCell, attentions: tuple[str, ...], *, rounds: int, cost: float) -> Item:
    def measure(workspace: Workspace) -> dict[str, Any]:
        return bench.measure(cell, attentions, rounds, workspace.show)

    settings = asdict(cell) | {"attentions": attentions, "rounds": rounds, "preset": "skyformer", "seed": 0}
    return Item(NAME, slug(cell.task, "dropout", cell.attention_dropout), settings, measure, cost)
