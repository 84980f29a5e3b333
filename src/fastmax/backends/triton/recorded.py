"""The GPUs on which the whole suite has run: "auto" takes this backend there, and nowhere else."""

import logging
from functools import cache
from typing import NamedTuple


class RecordedRun(NamedTuple):
    """One reported line of `make test-gpu`."""

    arch: str  # "sm_80", "gfx942"
    gpu: str
    driver: str
    torch: str
    triton: str
    date: str


RUNS: tuple[RecordedRun, ...] = ()
"""None yet: the kernels are tested in Triton's interpreter and compiled for their targets, and have not run on a GPU."""


def is_recorded(arch: str) -> bool:
    return any(run.arch == arch for run in RUNS)


@cache
def say_how_to_opt_in(arch: str) -> None:
    """Warn once per process and architecture."""
    logging.getLogger("fastmax").warning(
        'fastmax: no run of the Triton backend on %s is recorded yet, so backend="auto" uses "chunked", plain PyTorch. '
        'backend="triton" opts in; `make test-gpu` tests it on this GPU and prints a line to report (docs/gpu.md).',
        arch,
    )
