"""Settings that several commands have: the data folder, the threads, the device, and how results are printed."""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastmax_lab._settings import SettingError, setting
from fastmax_lab.commands.paths import new_folder
from fastmax_lab.data.files import default_folder
from fastmax_lab.report.terminal import show


@dataclass(frozen=True)
class DataFolder:
    data: Path | None = setting(
        f"folder of the data (default: {default_folder()})", default=None, metavar="DIR", problem=new_folder
    )


@dataclass(frozen=True)
class Threads:
    threads: int | None = setting("threads that torch may use", default=None, at_least=1, at_most=1024)


@dataclass(frozen=True)
class Device:
    device: str = setting(
        "where to compute; auto is the GPU, if there is one",
        default="auto",
        choices=("auto", "cpu", "cuda", "mps", "xpu"),
    )


@dataclass(frozen=True)
class Printing:
    json: bool = setting("print JSON in the place of text", default=False)


def data_folder(options: argparse.Namespace) -> Path:
    return default_folder() if options.data is None else Path(options.data)


def set_threads(options: argparse.Namespace) -> None:
    import torch

    if options.threads is not None:
        torch.set_num_threads(options.threads)


def check_device(name: str) -> None:
    """SettingError if this machine has no such device."""
    import torch

    there = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    kinds = ["auto", "cpu", *([] if there is None else [there.type])]
    if name not in kinds:
        raise SettingError("device", f"must be one of {', '.join(kinds)} on this machine, got {name!r}")


def print_result(options: argparse.Namespace, result: Any, text: Callable[[Any], str]) -> None:
    """As a report, or as JSON for other programs."""
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        show(text(result))
