"""The `fastmax` command: puts the commands together, and turns what they raise into one line and an exit code."""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import fastmax
from fastmax.commands import bench, data, lra, report, reproduce, tune
from fastmax.commands.parser import ArgumentValueError, Parser, one_line, subcommands


def parser() -> Parser:
    """Every command sets `run`, a function of the options, and may set `stopped`, what Ctrl-C is answered with."""
    top = Parser(prog="fastmax", description=fastmax.__doc__)
    top.add_argument("--version", action="version", version=f"fastmax {fastmax.__version__}")
    commands = subcommands(top, "command", ["demo", "info", "bench", "tune", "lra", "reproduce", "report", "data"])
    demo = commands.add_parser("demo", help="show on this machine that the result is exact and the time linear")
    demo.set_defaults(run=bench.demo)
    about = commands.add_parser("info", help="show version, machine and which backends are there, or why not")
    about.set_defaults(run=lambda _: print(info()))
    bench.add_parser(commands)
    tune.add_parser(commands)
    lra.add_parser(commands)
    reproduce.add_parser(commands)
    report.add_parser(commands)
    data.add_parser(commands)
    return top


def info() -> str:
    """One line per fact."""
    import torch

    from fastmax import backends

    lines = {"fastmax": fastmax.__version__, "torch": torch.__version__, "threads": str(torch.get_num_threads())}
    lines |= {f"backend {name}": backends.load(name).describe() for name in backends.NAMES}
    return "\n".join(f"{name:16} {value}" for name, value in lines.items())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code. What the user can put right is a line, anything else a traceback."""
    options = parser().parse_args(arguments)
    try:
        with _terminated_in_order():
            code = options.run(options) or 0
            sys.stdout.flush()
            return int(code)
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (ValueError, OSError) as error:
        print(f"{_prog(options)}: {one_line(error)}", file=sys.stderr)
        return 2 if isinstance(error, ArgumentValueError) else 1
    except KeyboardInterrupt:
        if "stopped" in options:
            print(f"\n{_prog(options)}: {options.stopped}", file=sys.stderr)
        return 130


def _prog(options: argparse.Namespace) -> str:
    return " ".join(["fastmax", options.command, *([options.action] if "action" in options else [])])


@contextmanager
def _terminated_in_order() -> Iterator[None]:
    """SIGTERM unwinds the stack, so that half-made files and locks are cleaned up."""

    def leave(*_: object) -> NoReturn:
        raise SystemExit(128 + signal.SIGTERM)

    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())
