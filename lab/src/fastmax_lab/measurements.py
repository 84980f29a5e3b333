"""Measurements: the one record of experiments and benchmarks, a line of JSON in the file of its experiment."""

import json
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastmax._atomic_file import check_target, write_whole

SUFFIX = ".jsonl"
MACHINE_FACTS = ("processor", "cores", "torch")
"""Facts that every record has. The first ones were made before `simd` and `date` were noted."""


@dataclass(frozen=True)
class Measurement:
    """A result under a name, with its settings, command and machine.

    `settings` are all that decides `values`; both are plain JSON. `seconds` are those spent on the measurement, over
    every process that worked on it, or None where they were not counted.
    """

    experiment: str
    name: str
    settings: dict[str, Any]
    values: dict[str, Any]
    machine: dict[str, Any]
    command: str
    seconds: float | None = None


_TYPES = {"experiment": str, "name": str, "settings": dict, "values": dict, "machine": dict, "command": str}


class Recorder:
    """The measurements of one command, in order. Where there is a file, each is added to it as soon as it is made.

    Raises:
        ValueError: the file holds something else than measurements. It is left as it is.
    """

    def __init__(self, experiment: str, path: Path | None = None) -> None:
        self.experiment, self.path = experiment, path
        self.made: list[Measurement] = []
        if path is not None and check_target(path):
            read(path)
        elif path is not None:
            # kept open until the process ends: the reader of a pipe waits for the next record
            self._pipe = os.open(path, os.O_WRONLY)

    def add(self, name: str, settings: dict[str, Any], values: dict[str, Any]) -> None:
        """Keep what this process measured under a name."""
        self.made.append(measured_here(self.experiment, name, settings, values))
        if self.path is not None:
            append(self.path, self.made[-1])


def measured_here(experiment: str, name: str, settings: dict[str, Any], values: dict[str, Any]) -> Measurement:
    """Return a record of this machine and this process's command."""
    return Measurement(experiment, name, plain(settings), plain(values), machine(), command_line())


def read(path: Path) -> list[Measurement]:
    """Return the records of a file in its order; none if there is no file.

    Raises:
        ValueError: a line is not a record. The message names the file and the line.
    """
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [_parsed(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]


def append(path: Path, measurement: Measurement) -> None:
    """Add a record at the end of a file; an earlier one of the same name gives way to it.

    The file is replaced in one step, so readers never see half a line. Several processes may append to files of one
    folder: the folder is locked. A device or a pipe gets the record alone.

    Raises:
        ValueError: a number is not finite, which JSON cannot hold. Nothing is written.
    """
    line = json.dumps(asdict(measurement), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.parent):
        is_file = check_target(path) and path.exists()  # to read a pipe would wait, to read a device may never end
        lines = path.read_text(encoding="utf-8").splitlines() if is_file else []
        kept = [one for one in lines if json.loads(one)["name"] != measurement.name]
        write_whole(path, "".join(f"{one}\n" for one in [*kept, line]).encode())


def machine() -> dict[str, Any]:
    """Return the facts about this machine that a figure must be read with."""
    import torch

    import fastmax

    return {
        "processor": _cpu("model name") or platform.processor() or platform.machine(),
        "generation": _generation(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "simd": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fastmax": fastmax.__version__,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def command_line() -> str:
    """Return the command of this process as a user would type it, without the file or folder that it writes to."""
    program = Path(sys.argv[0])
    module = getattr(sys.modules["__main__"].__spec__, "name", "")  # of `python -m`
    is_script = program.suffix == ".py" and program.stem != "__main__"
    script = f"python -m {module}" if module.endswith(f".{program.stem}") else f"python {program.name}"
    words = [script if is_script else "fastmax-lab"]
    rest = iter(sys.argv[1:])
    for word in rest:
        if word in ("--out", "--picture"):
            next(rest, None)
        else:
            words.append(word)
    return " ".join(words)


def plain(value: Any) -> Any:
    """Return a value as JSON returns it: tuples become lists."""
    return json.loads(json.dumps(value))


def slug(*parts: object) -> str:
    """Return a name for a record or a file: `fastmax2, gated` and 0.004 make fastmax2-gated-0.004."""
    words = " ".join(str(part) for part in parts).replace(",", " ").replace("/", " ").split()
    return "-".join(words)


def _parsed(line: str, where: str) -> Measurement:
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON ({error})") from error
    known = [field.name for field in fields(Measurement)]
    if not isinstance(found, dict) or sorted(found) != sorted(known):
        raise ValueError(f"{where} is no measurement: expected an object with {', '.join(known)}")
    wrong = [name for name, kind in _TYPES.items() if not isinstance(found[name], kind)]
    wrong += [] if "machine" in wrong else [f"machine.{name}" for name in MACHINE_FACTS if name not in found["machine"]]
    if wrong:
        raise ValueError(f"{where} is no measurement: {', '.join(wrong)} is missing or of another type")
    return Measurement(**found)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system frees when the process dies. It leaves no file behind."""
    import fcntl  # not on every system, and only writing needs it

    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _generation() -> str:
    """Return the family and model of the processor: virtual machines give one name to generations of unlike speed."""
    family, model = _cpu("cpu family"), _cpu("model")
    return f"family {family}, model {model}" if family else ""


def _cpu(fact: str) -> str:
    """Return what the system reports of its first processor, "" if nothing."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    facts = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in facts if name.strip() == fact), "")
