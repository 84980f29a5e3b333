"""The last line of `make test-gpu`: what ran where, to be pasted into a report."""

import importlib.metadata
import subprocess
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import torch

import fastmax


def line(passed: int, failed: int) -> str:
    """Everything that a row of `fastmax.backends.triton.recorded.RUNS` has."""
    facts = [f"fastmax {fastmax.__version__}", *_gpu(), f"torch {torch.__version__}", f"triton {_triton()}"]
    facts += [datetime.now(UTC).strftime("%Y-%m-%d"), f"{passed} passed", f"{failed} failed"]
    facts += ["no test ran on a GPU"] if passed == 0 else []
    return "GPU run: " + " | ".join(facts)


def counts(outcomes: Callable[[str], Sequence[object]]) -> tuple[int, int]:
    """Passed and failed, of what a function has by outcome; a test that did not come so far as to fail has failed."""
    return len(outcomes("passed")), len(outcomes("failed")) + len(outcomes("error"))


def _gpu() -> list[str]:
    if not torch.cuda.is_available():
        return ["no GPU"]
    from fastmax.backends.triton.device import architecture

    return [architecture(torch.device("cuda")), torch.cuda.get_device_name(), f"driver {_driver()}"]


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return str(torch.version.hip or "unknown")


def _triton() -> str:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return "missing"
