"""`fastmax reproduce`: run an experiment; what is measured already is not measured again."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from fastmax._settings import add_arguments, setting
from fastmax.commands.parser import Parser
from fastmax.commands.shared import DataFolder, Threads, data_folder, set_threads

EXPERIMENTS = ("language", "recall")


@dataclass(frozen=True)
class Experiments:
    out: Path = setting("where the results are and go", default=Path("results/learning"), metavar="DIR")
    steps: int = setting("steps of training of a language model", default=600, at_least=1)


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    reproduce = subparsers.add_parser("reproduce", help="run experiments, and go on where they were stopped")
    reproduce.add_argument(
        "--only", nargs="+", choices=EXPERIMENTS, default=list(EXPERIMENTS), help="which (default: all)"
    )
    reproduce.add_argument("--tokens", nargs="+", type=int, choices=(128, 512), default=[128, 512], help="of language")
    for kind in (Experiments, DataFolder, Threads):
        add_arguments(reproduce, kind)
    reproduce.set_defaults(run=_run, stopped="stopped; run it again to go on")


def _run(options: argparse.Namespace) -> None:
    from fastmax.reproduce import learning

    set_threads(options)
    if "recall" in options.only:
        learning.run_recall(options.out)
    if "language" in options.only:
        learning.run_language(data_folder(options), options.out, options.tokens, options.steps)
