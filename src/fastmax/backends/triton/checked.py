"""The GPUs on which `fastmax doctor` has passed the kernels for this user: "auto" takes this backend there alone."""

import json
import logging
import subprocess
from functools import cache
from pathlib import Path

import torch

from fastmax._atomic_file import write_whole
from fastmax.backends.triton import device


def path() -> Path:
    """Return the file of the results, in the user's cache folder."""
    return Path.home() / ".cache" / "fastmax" / "doctor.json"


def key(where: torch.device) -> str:
    """Return what a result holds for: a GPU, its driver, and the versions of torch and Triton."""
    name = "interpreter" if where.type == "cpu" else torch.cuda.get_device_name(where)
    triton = ".".join(map(str, device.triton_version() or ()))
    return f"{name}, {device.architecture(where)}, driver {driver()}, torch {torch.__version__}, triton {triton}"


@cache
def driver() -> str:
    """Return the version of the driver of the GPU."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True, timeout=20).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return str(torch.version.hip or "unknown")


@cache
def is_checked(where: torch.device) -> bool:
    """Return True if the doctor has passed the kernels here. Read once per process."""
    known = _read()
    return bool(known) and known.get(key(where)) is True


def store(where: torch.device, *, passed: bool) -> None:
    """Keep a result for later processes, and for this one.

    Raises:
        OSError: The file cannot be written.
    """
    path().parent.mkdir(parents=True, exist_ok=True)
    write_whole(path(), json.dumps(_read() | {key(where): passed}, indent=1).encode())
    is_checked.cache_clear()


def forget() -> bool:
    """Delete all results. Return True if there were any."""
    known = path().exists()
    path().unlink(missing_ok=True)
    is_checked.cache_clear()
    return known


def _read() -> dict[str, bool]:
    """Return the results by key. A file that is missing or unreadable has none."""
    try:
        found = json.loads(path().read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@cache
def suggest_doctor(arch: str) -> None:
    """Warn once per process and architecture."""
    logging.getLogger("fastmax").warning(
        'fastmax: the Triton kernels are not checked on this GPU (%s), so backend="auto" uses "batched", plain PyTorch. '
        "`fastmax doctor` checks them in minutes; where they pass, later processes use them (docs/gpu.md).",
        arch,
    )
