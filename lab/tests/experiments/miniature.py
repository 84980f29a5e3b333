"""All experiments at a size that takes seconds: through the same code as any budget, for tests of running and reporting."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lab.tests.lra import made_up

from fastmax_lab.bench import lra as bench_lra
from fastmax_lab.bench.lra import LayerCell
from fastmax_lab.bench.scaling import Grid
from fastmax_lab.experiments import (
    dropout,
    exactness,
    far_grid,
    language,
    lra,
    lra_layers,
    lra_pace,
    lra_settings,
    lra_speed,
    maps,
    order_one,
    recall_grid,
    recipes_language,
    runner,
    scaling,
)
from fastmax_lab.experiments.dropout import DropoutRun
from fastmax_lab.experiments.far import FarRun
from fastmax_lab.experiments.items import Item
from fastmax_lab.experiments.lra import TaskBudget
from fastmax_lab.experiments.maps import ImageRun
from fastmax_lab.experiments.order_one import OrderOneRun
from fastmax_lab.experiments.recall import RecallRun
from fastmax_lab.experiments.vision import VisionConfig
from fastmax_lab.measurements import Measurement

TEXT = replace(language.QUICK, tokens=32, steps=6, batch=2, width=16, validation=256)
TASK = TaskBudget(batch=4, steps=40, lr=1e-3, length=32, evaluated=16, examples=32, group_lengths=True)


def items() -> list[Item]:
    vision = VisionConfig(layers=1, dim=16, heads=2, mlp=16)
    found = [one for one in exactness.items("quick", []) if one.name != "error"]
    found.append(scaling.item(Grid(8, (64, 256, 512), rounds=1, longest=10.0, limit=1 << 20)))
    found.append(scaling.item(Grid(8, (64, 256), heads=8, rounds=1, longest=10.0, limit=1 << 20)))
    found.append(scaling.forms_item(Grid(8, (64, 256), rounds=1)))
    found.append(scaling.heads_item(((4, 8), (16, 4)), 512, rounds=1))
    for name in maps.ATTENTIONS:
        found.append(maps.item(ImageRun(name, "shapes", 0, 4, 8, 3e-3, vision), 1, 3e-3))
        found.append(maps.item(replace(TEXT, attention=name), 1, TEXT.lr))
    for seed in (0, 1):
        ways = (("none", 0.0), ("standard", 0.1), ("1d", 0.1), ("quadratic", 0.1))
        sizes: dict[str, Any] = {"data": "shapes", "examples": 20, "steps": 4, "batch": 4, "every": 2, "tested": 20}
        runs = [DropoutRun(mode, rate, seed, layers=1, dim=8, heads=1, **sizes) for mode, rate in ways]
        found += [dropout.item(run, 1) for run in runs]
    found += [language.item(replace(TEXT, attention=name)) for name in ("softmax", "fastmax2", "fastmax2, gated")]
    for scale in ("1", "1/D"):
        small: dict[str, Any] = {"steps": 10, "batch": 2, "lr": 3e-3, "width": 16, "heads": 2, "tokens": 16}
        found += [order_one.item(OrderOneRun(data, scale, 0, **small)) for data in ("shapes", "listops")]
    for name in ("softmax", "fastmax2, gated", "performer"):
        found.append(recall_grid.item(RecallRun(name, names=8, pairs=3, steps=4, batch=2, width=8)))
    found += [recipes_language.item(replace(TEXT, attention=name)) for name in recipes_language.QUICK_RECIPES]
    for name in far_grid.QUICK_RECIPES:
        found.append(far_grid.item(FarRun(name, 2, length=32, steps=4, tokens=64, names=4, noise=4, width=8)))
    found.append(
        lra_speed.item(LayerCell("text", 1, 0.0), ("vanilla", "softmax", "fastmax1", "fastmax2"), rounds=1, cost=1)
    )
    found.append(
        lra_speed.item(LayerCell("listops", 1, 0.0), ("vanilla", "softmax", "fastmax1", "fastmax2"), rounds=1, cost=1)
    )
    found.append(lra_layers.item(LayerCell("listops", 1, 0.0), rounds=1, threads=1))
    found += [lra.item("listops", name, changes, 0, TASK) for name, changes in (*lra.MAIN, ("linear", {}))]

    found.append(lra.item("listops", "fastmax1", {}, 0, replace(TASK, steps=60), "longer"))
    found.append(lra_pace.item("listops", TASK, rounds=1))
    few = replace(TASK, steps=4)
    kinds = (("tuning", 0), ("whole", 0), ("whole", 1))
    small_table = [
        lra.item("listops", name, {}, seed, few, kind) for name in ("softmax", "fastmax1") for kind, seed in kinds
    ]
    found += [replace(one, experiment="lra-small") for one in small_table]
    equal_time = [lra.item("listops", name, {}, seed, few) for name in ("softmax", "fastmax1") for seed in (0, 1)]
    found += [replace(one, experiment="lra-clock") for one in equal_time]
    found += [lra_settings.item("listops", "softmax", seed, few) for seed in (0, 1)]
    found += [lra_settings.item("listops", name, 0, few) for name in ("softmax, standardized", "softmax, gated")]
    found += [lra_settings.item("listops", name, 0, few) for name in ("fastmax2", "fastmax2, paper's scale")]
    return found


def experiment(chosen: list[Item]) -> Any:
    """As a module of an experiment is: all of these under the name of the first."""

    def asked(_budget: str, _found: Sequence[Measurement]) -> list[Item]:
        return chosen

    return SimpleNamespace(NAME=chosen[0].experiment, items=asked)


def measured(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """A folder with results of everything; the Long Range Arena is timed on short sequences, and its memory made up."""
    shapes = {
        name: replace(made_up.TASKS[name], length=32 if name == "listops" else 48) for name in ("text", "listops")
    }
    patch.setattr(bench_lra, "SHAPES", shapes)
    patch.setattr(bench_lra, "peak", lambda _task, batch, name, _rate: {"before": 0, "peak": (batch + len(name)) << 20})
    out = folder / "results"
    runner.run(
        [experiment(items())],
        "quick",
        data=folder / "data",
        out=out,
        command="fastmax-lab reproduce",
        say=lambda _: None,
    )
    return out
