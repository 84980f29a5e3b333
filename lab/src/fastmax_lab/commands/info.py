"""`fastmax info`: version, machine and backends, for a user and for a bug report."""

import argparse

import fastmax
from fastmax_lab._settings import add_arguments
from fastmax_lab.commands.parser import Parser, command
from fastmax_lab.commands.shared import Printing, print_result


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    about = command(
        subparsers,
        "info",
        "show version, machine and which backends are there, or why not",
        examples=["fastmax info", "fastmax info --json"],
    )
    add_arguments(about, Printing)
    about.set_defaults(run=_run, torch=True)


def facts() -> dict[str, str]:
    import torch

    from fastmax import backends

    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    found = {"fastmax": fastmax.__version__, "torch": torch.__version__, "threads": str(torch.get_num_threads())}
    found["device"] = "cpu" if device is None else device.type
    return found | {f"backend {name}": backends.load(name).describe() for name in backends.NAMES}


def _run(options: argparse.Namespace) -> None:
    print_result(options, facts(), lambda found: "\n".join(f"{name:16} {value}" for name, value in found.items()))
