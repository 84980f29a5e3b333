"""Settings that several commands have: the data folder and the threads."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from fastmax._settings import setting
from fastmax.data.files import default_folder


@dataclass(frozen=True)
class DataFolder:
    data: Path | None = setting(f"folder of the data (default: {default_folder()})", default=None, metavar="DIR")


@dataclass(frozen=True)
class Threads:
    threads: int | None = setting("threads that torch may use", default=None, at_least=1, at_most=1024)


def data_folder(options: argparse.Namespace) -> Path:
    return default_folder() if options.data is None else Path(options.data)


def set_threads(options: argparse.Namespace) -> None:
    import torch

    if options.threads is not None:
        torch.set_num_threads(options.threads)
