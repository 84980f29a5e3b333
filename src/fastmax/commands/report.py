"""`fastmax report`: draw what `fastmax reproduce` has measured."""

import argparse
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from fastmax._settings import add_arguments, setting
from fastmax.commands.parser import ArgumentValueError, Parser


@dataclass(frozen=True)
class Drawing:
    out: Path | None = setting("where to write (default: DIR/report)", default=None, metavar="DIR")


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    report = subparsers.add_parser("report", help="draw a page of what reproduce has measured; measures nothing")
    report.add_argument("folder", type=Path, metavar="DIR", help="where the results are")
    add_arguments(report, Drawing)
    report.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    if find_spec("matplotlib") is None:
        raise OSError("matplotlib missing: run pip install '.[report]' in a clone of fastmax")
    if not options.folder.is_dir():
        raise ArgumentValueError(f"argument DIR: {options.folder} is not a folder")
    from fastmax.report.page.build import build

    report = build(options.folder, options.folder / "report" if options.out is None else options.out)
    for line in report.headlines:
        print(line)
    print(f"The report: {report.page}")
