"""The kernels compile for GPUs that are not here: no registers spilled, shared memory that fits, products on tensor cores."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.backends.interpreter import MISSING

pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

SMALL_SPILLS = 100
"""Bytes; none on sm_80 for D <= 64, on sm_90, and in kernels that multiply nothing."""

SMALL_KERNELS = ("normalize", "centre", "centre_keys", "output_grads", "step", "fold")

MAIN_LOOP = 6
"""Instructions per product on sm_80 (a product takes eight issue slots), in the loop that has all the work."""


def compiled(*arguments: str) -> list[dict[str, Any]]:
    """In a process of its own, which must not be told to interpret."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.backends.offline", *arguments]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(found: dict[str, Any]) -> None:
    assert found["fits"], found
    small = found["kernel"] in SMALL_KERNELS
    target, head_dim = found["target"], found["head_dim"]
    exact = small or target == "sm_90" or (target == "sm_80" and head_dim <= 64)
    assert found["spills"] <= (0 if exact else SMALL_SPILLS), found
    if small:
        return
    assert found["products"] > 0, found
    if target == "sm_80":
        # the loop over pairs of channels: the first of the sums, and the last but that of the dense part where rows read
        loop = found["loops"][0 if found["kernel"].startswith("accumulate") else -2]
        instructions, products = map(int, loop.split("/"))
        assert instructions / products <= MAIN_LOOP, found


def test_the_kernels_of_a_forward_pass() -> None:
    found = compiled("sm_80", "--kernel", "accumulate", "read o")
    assert [one["kernel"] for one in found] == ["accumulate S", "read o"]
    for one in found:
        check(one)


@pytest.mark.interpreted
@pytest.mark.parametrize("head_dim", [16, 32, 64, 128])
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "sm_120", "gfx942"])
def test_all_kernels(target: str, head_dim: int) -> None:
    found = compiled(target, "--head-dim", str(head_dim), "--small")
    assert len(found) == 5 + len(SMALL_KERNELS)
    for one in found:
        check(one)


@pytest.mark.interpreted
@pytest.mark.parametrize(
    ("order", "dtype", "constants"),
    [
        (2, "bf16", {"HAS_IN": False, "PACKED": False, "MASKED": False, "DECAY": True, "GROUPS": 3}),
        (1, "bf16", {"HAS_IN": False, "DECAY": True}),
        (1, "fp16", {"CAUSAL": False, "DENSE": False, "STORE": False}),
        (2, "bf16", {"CAUSAL": False, "DENSE": False, "STORE": False, "NORM": "rms"}),
        (4, "fp32", {"STATE": False, "CAUSAL": False, "NORM": "none", "SCALED": False}),
        (2, "fp32", {"HAS_IN": False}),
    ],
)
def test_what_else_kernels_are_compiled_for(order: int, dtype: str, constants: dict[str, Any]) -> None:
    """The compiler takes it, which the interpreter does not show."""
    chosen = ["--kernel", "read"] if order > 2 else []
    arguments = ["--head-dim", "32", "--dtype", dtype, "--order", str(order), "--constants", json.dumps(constants)]
    for one in compiled("sm_80", *arguments, *chosen):
        assert one["fits"], one
        assert one["products"] > 0, one
