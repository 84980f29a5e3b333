"""The `fastmax` command: puts the commands together, and turns what they raise into one line and an exit code."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence

import fastmax
from fastmax_lab._progress import waiting
from fastmax_lab._settings import SettingError
from fastmax_lab.commands import bench, completion, data, demo, info, lra, report, reproduce, tune
from fastmax_lab.commands.interrupts import STOPPED, Signals, in_order
from fastmax_lab.commands.parser import ArgumentValueError, Parser, one_line, subcommands

COMMANDS = {
    "demo": demo,
    "info": info,
    "bench": bench,
    "tune": tune,
    "lra": lra,
    "reproduce": reproduce,
    "report": report,
    "data": data,
    "completion": completion,
}


def parser() -> Parser:
    """Every command sets `run`, a function of the options.

    It may set `torch`, which is imported before it runs, and `stopped`, what Ctrl-C is answered with.
    """
    top = Parser(
        prog="fastmax-lab",
        description=fastmax.__doc__,
        examples=[
            "fastmax-lab demo",
            "fastmax info",
            "fastmax-lab bench kernel --quick",
            "fastmax-lab lra train --help",
        ],
    )
    top.add_argument("--version", action="version", version=f"fastmax {fastmax.__version__}")
    commands = subcommands(top, "command", list(COMMANDS))
    for one in COMMANDS.values():
        one.add_parser(commands)
    completion.describe(top)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code. What the user can put right is a line, anything else an exception."""
    options = parser().parse_args(arguments)
    if "torch" in options:
        _import_torch()  # before signals are taken: see `leave_at_once`
    with in_order() as signals:
        try:
            code = options.run(options) or 0
            sys.stdout.flush()
            return int(code)
        except BaseException as error:
            answer = _answer(error, options, signals)
            if answer is None:
                raise
            return answer


def _answer(error: BaseException, options: argparse.Namespace, signals: Signals) -> int | None:
    """The exit code for what a command raised, after a line if there is something to tell; None for what nobody foresaw."""
    if signals.interrupted or isinstance(error, KeyboardInterrupt):
        if "stopped" in options:
            print(f"\n{_prog(options)}: {options.stopped}", file=sys.stderr)
        return STOPPED
    if isinstance(error, BrokenPipeError):  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    if isinstance(error, SettingError):
        print(
            f"{_prog(options)}: argument --{error.name.replace('_', '-')}: {one_line(error.refusal)}", file=sys.stderr
        )
        return 2
    if isinstance(error, ValueError | OSError):
        print(f"{_prog(options)}: {one_line(error)}", file=sys.stderr)
        return 2 if isinstance(error, ArgumentValueError) else 1
    return None


def _prog(options: argparse.Namespace) -> str:
    return " ".join(["fastmax-lab", options.command, *([options.action] if "action" in options else [])])


def _import_torch() -> None:
    with waiting("loading PyTorch"):
        import torch  # noqa: F401


if __name__ == "__main__":
    sys.exit(main())
