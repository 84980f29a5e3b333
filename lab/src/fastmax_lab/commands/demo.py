"""`fastmax-lab demo`: exact and linear, shown on this machine."""

import argparse

from fastmax_lab._settings import add_arguments
from fastmax_lab.commands.parser import Parser, command
from fastmax_lab.commands.shared import Printing, Threads, print_result, set_threads


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    demo = command(
        subparsers,
        "demo",
        "show on this machine that the result is exact and the time linear",
        examples=["fastmax-lab demo", "fastmax-lab demo --threads 1"],
    )
    for kind in (Threads, Printing):
        add_arguments(demo, kind)
    demo.set_defaults(run=_run, torch=True)


def _run(options: argparse.Namespace) -> None:
    from fastmax_lab.bench.demo import run
    from fastmax_lab.report.demo import summary

    set_threads(options)
    print_result(options, run(), summary)
