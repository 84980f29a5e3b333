"""A grid of tasks, attentions and seeds, one folder each: stop it at any point, start it again, and it goes on."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fastmax_lab.lra.config import Intervals
from fastmax_lab.lra.run import RunConfig
from fastmax_lab.lra.train import train


def folder(out: Path, config: RunConfig) -> Path:
    return out / f"{config.task}-{config.attention}-seed{config.seed}"


def sweep(
    configs: Sequence[RunConfig],
    *,
    data: Path,
    out: Path,
    intervals: Intervals | None = None,
    device: str = "auto",
    say: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Run all, resuming each where it stopped; those with a result are not repeated."""
    results = []
    for number, config in enumerate(configs, 1):
        say(f"[{number}/{len(configs)}] {config.task}, {config.attention}, seed {config.seed}")
        results.append(
            train(config, data=data, out=folder(out, config), resume=True, intervals=intervals, device=device, say=say)
        )
    return results
