"""The instruction set levels of a build, and the results of each level of the wheel."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from fastmax.backends import native
from tests.packaging.bare import Bare

pytestmark = pytest.mark.packaged

ROOT = Path(__file__).parents[2]
TESTS = ("test_native.py", "test_conformance.py", "test_step.py")
LEVELS = "from fastmax.backends import native; print(*native.levels())"


def test_a_build_from_source_is_for_this_machine(bare: Bare, tmp_path: Path) -> None:
    best = bare.run([bare.python, "-c", LEVELS], tmp_path).split()[0]
    assert configured("machine", tmp_path) == list(dict.fromkeys([best, "generic"]))


def test_a_wheel_is_for_all_machines(bare: Bare, tmp_path: Path) -> None:
    levels = configured("all", tmp_path)
    assert levels[-1] == "generic"
    if platform.machine() == "x86_64":
        assert levels[-4:-1] == ["x86-64-v4", "x86-64-v3", "x86-64-v2"]
    description = bare.run(["fastmax", "info"], tmp_path)
    assert f"(compiled in: {', '.join(levels)})" in description


def test_another_choice_of_levels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="FASTMAX_LEVELS must be machine or all, got v3"):
        configured("v3", tmp_path)


def test_every_level_of_the_wheel_is_right(wheel: Path, bare: Bare, tmp_path: Path) -> None:
    """The kernel's tests at the levels that the installation under test lacks, which `make test` leaves out."""
    levels = bare.run([bare.python, "-c", LEVELS], tmp_path).split()
    left = [level for level in levels if level not in native.levels()]
    if not left:
        pytest.skip("the installation under test has every level that runs here")
    tester = Bare(tmp_path / "venv", packages=("pytest", "pytest-xdist", "hypothesis", "setuptools"))
    tester.install(wheel)
    options = ["-q", "-p", "no:cacheprovider", "--numprocesses", "2", "-k", " or ".join(left)]
    tester.run([tester.python, "-m", "pytest", *options, *(f"tests/backends/{name}" for name in TESTS)], ROOT)


def configured(choice: str, folder: Path) -> list[str]:
    """Return the public names of the levels that CMake would build."""
    command = [sys.executable, "-m", "cmake", "-S", str(ROOT), "-B", str(folder / choice), f"-DFASTMAX_LEVELS={choice}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if "Instruction set levels: " in line)
    names = line.split(": ")[1].split(";")
    return [name if name == "generic" else f"x86-64-{name.replace('_', '-')}" for name in names]
