"""The GPU that a tensor is on, and whether Triton is there for it."""

import sys
from functools import cache
from importlib.util import find_spec

import torch

HOPPER_NEEDS = (3, 7, 1)
"""Earlier versions of Triton, from 3.4 on, compile transposed operands wrongly for sm_90."""

INTERPRETED = "sm_80"
"""The architecture whose tiles Triton's interpreter uses."""


def is_interpreting() -> bool:
    """Return True if Triton runs kernels on the CPU (TRITON_INTERPRET=1, for tests). Does not import Triton."""
    triton = sys.modules.get("triton")
    return triton is not None and bool(triton.knobs.runtime.interpret)


@cache
def architecture(device: torch.device) -> str:
    """Return the name of the architecture, such as "sm_80" or "gfx942"."""
    if device.type == "cpu":
        return INTERPRETED
    return _of_gpu(device)  # pragma: no cover  (needs one)


def _of_gpu(device: torch.device) -> str:  # pragma: no cover
    if torch.version.hip is not None:
        name: str = torch.cuda.get_device_properties(device).gcnArchName
        return name.partition(":")[0]
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


@cache
def memory(device: torch.device) -> int:
    """Return the bytes of memory of a GPU, 0 of other devices."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0


@cache
def triton_version() -> tuple[int, ...] | None:
    """Return the version of Triton, or None without it. Imports Triton, so call it for tensors on a GPU only."""
    if find_spec("triton") is None:
        return None
    import triton

    return numbers(triton.__version__)


def numbers(version: str) -> tuple[int, ...]:
    """Convert "3.7.1+git12" to (3, 7, 1)."""
    return tuple(int(part) for part in version.partition("+")[0].split(".")[:3] if part.isdigit())


def missing(device: torch.device) -> str | None:
    """Return why no kernel can be launched on tensors of a device, or None."""
    if device.type == "cpu" and is_interpreting():
        return None
    if device.type != "cuda":
        return f"it runs on GPUs, and the tensors are on {device}"
    version = triton_version()
    if version is None:
        return "triton is not installed; the CUDA and ROCm builds of torch bring it"
    arch = architecture(device)
    if arch == "sm_90" and version < HOPPER_NEEDS:
        return (
            f"on {arch} it needs triton {'.'.join(map(str, HOPPER_NEEDS))}, and there is {'.'.join(map(str, version))}"
        )
    return None
