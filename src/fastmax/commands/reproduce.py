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
    _show(options.out)


def _show(out: Path) -> None:
    """The tables of all that is there."""
    from fastmax.report import learning as report
    from fastmax.report.terminal import show
    from fastmax.reproduce.queue import results

    for path in sorted(out.glob("language-*.jsonl"), key=lambda path: (len(path.name), path.name)):
        found = results(path)
        tokens = path.stem.removeprefix("language-")
        show(f"Language, {tokens} tokens\n\n{report.language(found)}\n\n{report.reaches(found)}")
    found = results(out / "recall.jsonl")
    if found:
        show(f"Recall\n\n{report.recall(found)}")
