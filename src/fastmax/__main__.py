"""The command `fastmax`, also as `python -m fastmax`: show what is installed and which backends run here."""

import argparse
import json
import sys
from collections.abc import Sequence

import torch

import fastmax
from fastmax import backends


def facts() -> dict[str, str]:
    """Return the versions, the threads, the device and the state of each backend."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    found = {"fastmax": fastmax.__version__, "torch": torch.__version__, "threads": str(torch.get_num_threads())}
    found["device"] = "cpu" if device is None else device.type
    return found | {f"backend {name}": backends.load(name).describe() for name in backends.NAMES}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(prog="fastmax", description=fastmax.__doc__, allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"fastmax {fastmax.__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="{info}")
    about = "show the versions, the machine, and which backends run here; paste it into a bug report"
    info = commands.add_parser("info", help=about, description=about, allow_abbrev=False)
    info.add_argument("--json", action="store_true", help="print JSON instead of text")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options = parser().parse_args(arguments)
    found = facts()
    text = "\n".join(f"{name:16} {value}" for name, value in found.items())
    try:
        print(json.dumps(found, indent=1) if options.json else text, flush=True)
    except BrokenPipeError:  # the reader has closed the pipe, as `head` does
        sys.stderr.close()
        return 141
    return 0


if __name__ == "__main__":
    sys.exit(main())
