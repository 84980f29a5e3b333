"""`fastmax-lab report`: draw what `fastmax-lab reproduce` has measured."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from fastmax_lab._progress import waiting
from fastmax_lab._settings import add_arguments, setting
from fastmax_lab.commands.extras import need
from fastmax_lab.commands.parser import Parser, command
from fastmax_lab.commands.paths import existing_folder, new_folder, path_type


@dataclass(frozen=True)
class Drawing:
    out: Path | None = setting("where to write (default: DIR/report)", default=None, metavar="DIR", problem=new_folder)


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    report = command(
        subparsers,
        "report",
        "draw a page of what reproduce has measured; measures nothing",
        examples=["fastmax-lab report out/quick", "fastmax-lab report out/quick --out page"],
    )
    report.add_argument("folder", type=path_type(existing_folder), metavar="DIR", help="where the results are")
    add_arguments(report, Drawing)
    report.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    out = options.folder / "report" if options.out is None else options.out
    need("report")
    with waiting("drawing"):
        from fastmax_lab.report.page.build import build

        report = build(options.folder, out)
    for line in report.headlines:
        print(line)
    print(f"The report: {report.page}")
