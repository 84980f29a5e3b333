"""The base of all commands, and groups of options that several commands have."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from tyro.constructors import PrimitiveConstructorSpec

from fastmax_lab._settings import Range, SettingError
from fastmax_lab.commands.paths import NEW_FOLDER
from fastmax_lab.data.files import default_folder
from fastmax_lab.report.fit import show


@dataclass(frozen=True, kw_only=True)
class Command(ABC):
    """The options of a command. Its docstring is the help."""

    stopped: ClassVar[str] = ""
    """The answer to Ctrl-C, where the work can go on."""

    @abstractmethod
    def run(self) -> int | None:
        """Run the command and return its exit code; None is 0."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """The folder of the data."""

    data: Annotated[Path | None, NEW_FOLDER] = None
    """Folder of the data, instead of ~/.cache/fastmax."""

    @property
    def data_folder(self) -> Path:
        """Return the folder that was given, or the default one."""
        return default_folder() if self.data is None else self.data


@dataclass(frozen=True, kw_only=True)
class Threads:
    """The threads of torch."""

    threads: Annotated[int | None, Range(at_least=1, at_most=1024)] = None
    """Threads that torch may use."""

    def limit_threads(self) -> None:
        """Set the number of threads, if one was given."""
        import torch

        if self.threads is not None:
            torch.set_num_threads(self.threads)


@dataclass(frozen=True, kw_only=True)
class Device:
    """The device to compute on."""

    device: Literal["auto", "cpu", "cuda", "mps", "xpu"] = "auto"
    """Device to compute on. auto is the GPU, if there is one."""


@dataclass(frozen=True, kw_only=True)
class Printing:
    """The form of the results on standard output."""

    json: bool = False
    """Print JSON instead of text."""

    def show(self, result: Any, text: Callable[[Any], str]) -> None:
        """Print a result as JSON or as text."""
        if self.json:
            print(json.dumps(result, indent=1))
        else:
            show(text(result))


def choice(words: Sequence[str]) -> PrimitiveConstructorSpec[str]:
    """Return the annotation of an option that takes one of the words."""
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=f"{{{','.join(words)}}}",
        instance_from_str=lambda given: given[0],
        is_instance=lambda value: isinstance(value, str),
        str_from_instance=lambda value: [value],
        choices=tuple(words),
    )


def check_device(name: str) -> None:
    """Check that this machine has the device, else raise SettingError."""
    import torch

    there = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    kinds = ["auto", "cpu", *([] if there is None else [there.type])]
    if name not in kinds:
        raise SettingError("device", f"must be one of {', '.join(kinds)} on this machine, got {name!r}")
