"""The command `fastmax`, also as `python -m fastmax`: show what is installed, and check and time the backends."""

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

import torch

import fastmax
from fastmax import backends


def facts() -> dict[str, str]:
    """Return the versions, the threads, the device and the state of each backend."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    found = {"fastmax": fastmax.__version__, "torch": torch.__version__, "threads": str(torch.get_num_threads())}
    found["device"] = "cpu" if device is None else device.type
    return found | {f"backend {name}": backends.load(name).describe() for name in backends.NAMES}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {' '.join(message.split())}\n")


def parser() -> Parser:
    """Return the parser of the command line."""
    top = Parser(prog="fastmax", description=fastmax.__doc__, allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"fastmax {fastmax.__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="{info,doctor}")
    about = "show the versions, the machine, and which backends run here; paste it into a bug report"
    info = commands.add_parser("info", help=about, description=about, allow_abbrev=False)
    info.add_argument("--json", action="store_true", help="print JSON instead of text")
    about = (
        "check every backend on this machine, time it beside softmax attention, and let auto use Triton if it passes"
    )
    doctor = commands.add_parser(
        "doctor", help=about, description=f"{about}; takes up to three minutes", allow_abbrev=False
    )
    doctor.add_argument("--reset", action="store_true", help="forget what earlier runs have found")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        try:
            return _run(parser().parse_args(arguments))
        finally:
            print(end="", flush=True)  # also when argparse has printed its help and raises SystemExit
    except OSError as error:  # of the output, which keeps what it could not write
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader has closed the pipe, as `head` does
            return 128 + signal.SIGPIPE
        print(f"fastmax: {error.filename or 'standard output'}: {error.strerror}", file=sys.stderr)
        return 1


def _run(options: argparse.Namespace) -> int:
    if options.command == "doctor":
        return _doctor(reset=options.reset)
    found = facts()
    text = "\n".join(f"{name:16} {value}" for name, value in found.items())
    print(json.dumps(found, indent=1) if options.json else text)
    return 0


def _doctor(*, reset: bool) -> int:
    """Return 1 if a backend has failed a check."""
    from fastmax import doctor
    from fastmax.backends.triton import checked

    if reset:
        print("forgotten" if checked.forget() else "there was nothing to forget")
        return 0
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    passed = doctor.run(device or torch.device("cpu"), lambda line: print(line, flush=True))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
