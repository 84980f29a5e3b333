"""The kernels compile for GPUs that are not here, as they are launched: spills, shared memory, instructions and barriers.

And how many launches a call makes, of how many kernels, and how much memory it takes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.backends.interpreter import MISSING

pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "gfx90a", "gfx942")

PRODUCTS = ("accumulate", "read", "read_vjp")

MAX_COUNTS = {"mma": (6.5, 0.3), "sm_90": (40, 1.3), "sm_100": (120, 4), "gfx": (30, 1)}
"""Instructions and barriers per product of the main loop, by the kind of products: of a warp, which take eight issue slots on
sm_80, of four warps, of a whole block, of AMD's.
"""


def told(*arguments: str) -> list[dict[str, Any]]:
    """The lines of a process, which must not interpret and pretends to be a GPU."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.backends.offline", *arguments]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def most_spilled(found: dict[str, Any]) -> int:
    """Bytes. docs/gpu.md has what each kernel really spills."""
    if found["kernel"] not in PRODUCTS:
        return 16
    if found["case"] == "plain" and found["head_dim"] == 64 and found["target"] in ("sm_80", "sm_90", "gfx942"):
        return 0
    return 200


def check(found: dict[str, Any]) -> None:
    kernel, target, loops = found["kernel"], found["target"], found["loops"]
    assert found["fits"], found
    assert found["spills"] <= most_spilled(found), found
    if kernel not in PRODUCTS:
        return
    assert loops, found
    kind = target if target in MAX_COUNTS else "gfx" if target.startswith("gfx") else "mma"
    # the loop over pairs of channels: the first or last of the sums, and the last but that of the dense part where rows read
    main = -2 if kernel != "accumulate" else -1 if kind == "gfx" else 0
    if len(loops) == 1 and found["head_dim"] == 16:
        return  # a single pair of blocks: on sm_90 and AMD no loop over pairs of channels is left
    instructions, products, barriers = loops[main]
    assert instructions / products <= MAX_COUNTS[kind][0], found
    assert barriers / products <= MAX_COUNTS[kind][1], found


@pytest.mark.slow
def test_the_kernels_of_a_forward_pass() -> None:
    found = told("sm_80", "--kernel", "accumulate", "scan", "read", "--case", "plain", "--forward")
    assert [one["kernel"] for one in found] == ["accumulate", "scan", "read"]
    for one in found:
        check(one)


@pytest.mark.interpreted
@pytest.mark.parametrize("head_dim", [16, 32, 64, 128])
@pytest.mark.parametrize("target", TARGETS)
def test_all_kernels(target: str, head_dim: int) -> None:
    found = told(target, "--head-dim", str(head_dim), "--case", "plain", "all", "decode")
    assert len({one["kernel"] for one in found}) == 12
    for one in found:
        check(one)


@pytest.mark.interpreted
@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        ("unmasked", "bf16"),
        ("dense", "bf16"),
        ("packed", "bf16"),
        ("linear", "bf16"),
        ("linear", "fp16"),
        ("plain", "fp32"),
    ],
)
def test_what_else_kernels_are_compiled_for(case: str, dtype: str) -> None:
    """The compiler takes it, which the interpreter does not show."""
    for one in told("sm_80", "--head-dim", "32", "--dtype", dtype, "--case", case):
        assert one["fits"], one


@pytest.mark.slow
def test_launches_variants_and_memory() -> None:
    """Call in bf16 on no device: without a mask or a state PyTorch launches nothing itself, and no tensor of ones is made."""
    plain, odd, longer, packed, many = told("sm_80", "--count")
    assert [plain["forward"]["launches"], plain["backward"]["launches"]] == [7, 12]
    assert [packed["forward"]["launches"], packed["backward"]["launches"]] == [7, 12]
    for one in (plain, odd, longer, packed, many):
        assert one["forward"]["operations"] == one["backward"]["operations"] == {}
    kernels = {
        name: set(one["forward"]["variants"] + one["backward"]["variants"])
        for name, one in zip(("plain", "odd", "longer"), (plain, odd, longer), strict=True)
    }
    assert len(kernels["plain"]) == len(kernels["odd"]) == 13
    assert kernels["longer"] == kernels["odd"], "a new length compiles nothing"
    # 65,536 tokens, 128 heads of 128 channels: besides o, and the gradients of q, k and v
    assert many["forward"]["peak"] - many["bytes"] < 1.5 * 2**30
    assert many["backward"]["peak"] - 3 * many["bytes"] < 1.5 * 2**30
