"""Runs of one experiment in a file of JSON lines: those that are there are not run again, so a killed queue goes on."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastmax.bench.measure import machine


def results(path: Path) -> list[dict[str, Any]]:
    """Whole lines: a killed run may leave half of one at the end."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def pending(path: Path, runs: Sequence[Any]) -> list[Any]:
    done = [result["run"] for result in results(path)]
    return [run for run in runs if json.loads(json.dumps(asdict(run))) not in done]


def work(
    path: Path,
    runs: Sequence[Any],
    measure: Callable[[Any], dict[str, Any]],
    say: Callable[[str], None] = print,
) -> None:
    """Measure what is pending, one by one, and append each result as soon as it is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    left = pending(path, runs)
    for number, run in enumerate(left, 1):
        result = measure(run)
        line = json.dumps(result | {"machine": machine()})
        with path.open("a") as file:
            file.write(line + "\n")
        shown = {name: value for name, value in result.items() if name in ("val_loss", "accuracy", "seconds")}
        say(f"[{number}/{len(left)}] {run} {shown}")
