"""`fastmax-lab reproduce`: measure what the paper shows; what is measured already is not measured again."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from fastmax_lab._progress import waiting
from fastmax_lab._settings import add_arguments, setting
from fastmax_lab.commands.extras import need
from fastmax_lab.commands.parser import Parser, command
from fastmax_lab.commands.paths import new_folder
from fastmax_lab.commands.shared import DataFolder, Threads, data_folder, set_threads
from fastmax_lab.experiments.items import BUDGETS

EXPERIMENTS = (
    "exactness", "scaling", "maps", "dropout", "language", "recall", "lra-speed", "lra-pace", "lra", "lra-settings",
    "lra-small",
)  # fmt: skip
"""Those of `fastmax_lab.experiments.registry`, named here so that help and wrong arguments need no torch."""


@dataclass(frozen=True)
class Reproduction:
    budget: str = setting(
        "minutes without data, hours with real data, or the paper's scale, for GPUs",
        default="quick",
        choices=BUDGETS,
    )
    out: Path | None = setting(
        "where the results are and go (default: out/BUDGET)", default=None, metavar="DIR", problem=new_folder
    )


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    reproduce = command(
        subparsers,
        "reproduce",
        "measure what the paper shows, and go on where it was stopped",
        examples=[
            "fastmax-lab reproduce",
            "fastmax-lab reproduce --budget cpu --only scaling maps --data ~/data --out out/cpu",
        ],
    )
    reproduce.add_argument(
        "--only", nargs="+", choices=EXPERIMENTS, default=list(EXPERIMENTS), metavar="NAME",
        help=f"which experiments: {', '.join(EXPERIMENTS)} (default: all)",
    )  # fmt: skip
    for kind in (Reproduction, DataFolder, Threads):
        add_arguments(reproduce, kind)
    reproduce.set_defaults(run=_run, torch=True, stopped="stopped; run it again to go on")


def _run(options: argparse.Namespace) -> int:
    out = Path("out") / options.budget if options.out is None else options.out
    if {"lra", "lra-pace", "lra-settings", "lra-small"} & set(options.only):
        need("lra")
    set_threads(options)
    with waiting("loading"):
        from fastmax_lab.experiments import registry, runner
    chosen = [one for name, one in registry.EXPERIMENTS.items() if name in options.only]
    outcome = runner.run(chosen, options.budget, data=data_folder(options), out=out, command=_command(options))
    print(f"{outcome.measured} measured, {len(outcome.left_out)} left out; the results are in {out}")
    return 1 if outcome.left_out else 0


def _command(options: argparse.Namespace) -> str:
    """As it was given, but for folders: where a user keeps things is no part of a result."""
    parts = ["fastmax-lab reproduce", f"--budget {options.budget}"]
    if options.only != list(EXPERIMENTS):
        parts.append(f"--only {' '.join(options.only)}")
    if options.threads is not None:
        parts.append(f"--threads {options.threads}")
    if options.data is not None:
        parts.append("--data DIR")
    return " ".join(parts)
