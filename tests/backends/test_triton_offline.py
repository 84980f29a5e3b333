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
"""Bytes, where a tile is large: D = 128 but on sm_90, and targets that nobody has tuned for."""

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
    assert found["products"] > 0, found
    exact = found["target"] in ("sm_80", "sm_90") and (found["head_dim"] <= 64 or found["target"] == "sm_90")
    assert found["spills"] <= (0 if exact else SMALL_SPILLS), found
    if found["target"] == "sm_80" and found["head_dim"] >= 64:  # smaller heads leave tensor cores little to do
        per_product = [int(n) / int(products) for n, products in (loop.split("/") for loop in found["loops"])]
        assert min(per_product) <= MAIN_LOOP, found


def test_the_kernels_of_a_forward_pass() -> None:
    found = compiled("sm_80", "--kernel", "accumulate", "read o")
    assert [one["kernel"] for one in found] == ["accumulate S", "read o"]
    for one in found:
        check(one)


@pytest.mark.interpreted
@pytest.mark.parametrize("head_dim", [16, 32, 64, 128])
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "sm_120", "gfx942"])
def test_all_kernels(target: str, head_dim: int) -> None:
    found = compiled(target, "--head-dim", str(head_dim))
    assert len(found) == 5
    for one in found:
        check(one)
