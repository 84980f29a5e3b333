"""The last line of `make test-gpu`: what ran where, to be pasted into a report."""

import importlib.metadata
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import torch

import fastmax


def line(passed: int, failed: int) -> str:
    """Return the line to report: what ran, where, and with what result."""
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
    from fastmax.backends.triton.checked import driver
    from fastmax.backends.triton.device import architecture

    return [architecture(torch.device("cuda")), torch.cuda.get_device_name(), f"driver {driver()}"]


def _triton() -> str:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return "missing"
