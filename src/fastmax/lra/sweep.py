"""A grid of tasks, attentions and seeds, one folder each: stop it at any point, start it again, and it goes on."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fastmax.lra import paper
from fastmax.lra.run import RunConfig
from fastmax.lra.train import RESULT, Pace, train
from fastmax.report.table import table


def folder(out: Path, config: RunConfig) -> Path:
    return out / f"{config.task}-{config.attention}-seed{config.seed}"


def sweep(
    configs: Sequence[RunConfig],
    *,
    data: Path,
    out: Path,
    pace: Pace | None = None,
    say: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Each run resumes where it was; those with a result are not repeated."""
    results = []
    for number, config in enumerate(configs, 1):
        say(f"[{number}/{len(configs)}] {config.task}, {config.attention}, seed {config.seed}")
        results.append(train(config, data=data, out=folder(out, config), resume=True, pace=pace, say=say))
    return results


def results(out: Path) -> list[dict[str, Any]]:
    """Of all runs of a sweep that are finished."""
    return [json.loads(path.read_text()) for path in sorted(out.glob(f"*/{RESULT}"))]


def summary(found: Sequence[dict[str, Any]]) -> str:
    """Test accuracy in per cent, mean and spread over seeds, with the paper's in brackets."""
    cells: dict[tuple[str, str], list[float]] = {}
    for result in found:
        config = result["config"]
        cells.setdefault((config["attention"], config["task"]), []).append(100 * result["test"]["accuracy"])
    tasks = [task for task in paper.TASKS if any(task == t for _, t in cells)]
    rows = []
    for attention in dict.fromkeys(attention for attention, _ in cells):
        row = [_cell(cells.get((attention, task)), paper.accuracy(attention, task)) for task in tasks]
        rows.append([attention, *row])
    return f"Test accuracy in per cent (the paper's in brackets)\n\n{table(['', *tasks], rows)}\n\n{paper.WARNING}"


def _cell(values: list[float] | None, theirs: float | None) -> str:
    ours = "-" if values is None else f"{mean(values):.2f}"
    if values is not None and len(values) > 1:
        ours += f" ± {stdev(values):.2f}"
    return ours if theirs is None else f"{ours} ({theirs:.2f})"
