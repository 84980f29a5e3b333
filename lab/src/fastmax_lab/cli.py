"""The command `fastmax-lab`: one table of commands, parsed by tyro. An error is one line and an exit code."""

import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr
from io import StringIO
from typing import Any, get_type_hints

import tyro
from tyro.extras import SubcommandApp

import fastmax_lab
from fastmax_lab._settings import SettingError, check
from fastmax_lab.commands import bench, data, lra, reproduce
from fastmax_lab.commands.shared import Command

COMMANDS: dict[str, type[Command]] = {
    "reproduce": reproduce.Reproduce,
    "report": reproduce.DrawReport,
    "lra train": lra.Train,
    "lra sweep": lra.Sweep,
    "lra eval": lra.Eval,
    "data list": data.List,
    "data get": data.Get,
    "data unpack": data.Unpack,
    "bench core": bench.Core,
    "bench kernel": bench.Kernel,
    "bench decode": bench.Decode,
    "bench generate": bench.Generate,
    "bench dropout": bench.DropoutBenchmark,
    "bench decay": bench.DecayBenchmark,
    "bench values": bench.ValuesBenchmark,
    "bench narrow": bench.Narrow,
    "bench distributed": bench.Distributed,
    "bench long": bench.Long,
    "bench lra": bench.Lra,
    "bench gpu-estimate": bench.GpuEstimate,
    "tune": bench.Tune,
}
GROUPS = {
    "lra": "Train and test on the Long Range Arena.",
    "data": "List, fetch and unpack data sets.",
    "bench": "Measure on this machine.",
}


def parse(arguments: Sequence[str] | None = None) -> Command:
    """Return the command of a command line, without running it.

    Raises:
        SystemExit: With code 2 and one line on standard error if an argument is wrong; with code 0 after --help.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if list(arguments) == ["--version"]:
        print(f"fastmax-lab {fastmax_lab.__version__}")
        raise SystemExit(0)
    said = StringIO()
    try:
        with redirect_stderr(said):
            command: Command = _app().cli(
                prog="fastmax-lab",
                description=fastmax_lab.__doc__,
                args=arguments,
                config=(tyro.conf.FlagCreatePairsOff,),
            )
    except SystemExit as stop:
        if stop.code:
            print(f"fastmax-lab: {_first_paragraph(said.getvalue())}", file=sys.stderr)
        raise
    try:
        check(command)
    except SettingError as error:
        print(_describe(error, command), file=sys.stderr)
        raise SystemExit(2) from None
    return command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. An error that the user can mend is one line, any other a traceback."""
    try:
        code = _run(parse(arguments))
        print(end="", flush=True)
    except OSError as error:  # of the output, which keeps what it could not write
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader has closed the pipe, as `head` does
            return 128 + signal.SIGPIPE
        print(f"fastmax-lab: standard output: {error.strerror}", file=sys.stderr)
        return 1
    return code


def _run(command: Command) -> int:
    try:
        return command.run() or 0
    except KeyboardInterrupt:
        if command.stopped:
            print(f"\n{_name(command)}: {command.stopped}", file=sys.stderr)
        return 128 + signal.SIGINT
    except SettingError as error:
        print(_describe(error, command), file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("fastmax"):
            raise
        print(f"{_name(command)}: needs {error.name}: run pip install 'fastmax-lab[hf]'", file=sys.stderr)
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as error:
        print(f"{_name(command)}: {_one_line(error)}", file=sys.stderr)
    return 1


def _app() -> SubcommandApp:
    """Return tyro's application of the table of commands."""
    apps = {"": SubcommandApp()}
    for name, kind in COMMANDS.items():
        group, _, action = name.rpartition(" ")
        if group not in apps:
            apps[group] = SubcommandApp()
            apps[""].command(apps[group], name=group, help=GROUPS[group])
        apps[group].command(name=action)(kind)
    return apps[""]


def _name(command: Command) -> str:
    return f"fastmax-lab {next(name for name, kind in COMMANDS.items() if type(command) is kind)}"


def _describe(error: SettingError, command: Command) -> str:
    """Return the line for a setting that cannot be. An option has dashes, a positional argument has none."""
    hint: Any = get_type_hints(type(command), include_extras=True).get(error.name)
    positional = tyro.conf.Positional in getattr(hint, "__metadata__", ())
    option = error.name if positional else f"--{error.name.replace('_', '-')}"
    return f"{_name(command)}: argument {option}: {_one_line(error.refusal)}"


def _first_paragraph(box: str) -> str:
    """Return the text of a message of tyro up to the first rule inside of its frame, as one line."""
    words = re.split(r"│\s*─+", re.sub(r"╭.*╮", "", box), maxsplit=1)[0]
    return _one_line(re.sub(r"[│╰─╯]", "", words))


def _one_line(error: object) -> str:
    return " ".join(str(error).split())
