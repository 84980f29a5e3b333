"""native/tests/check_kernels.cpp: the kernels through their C interface, on this machine and for aarch64 in an emulator."""

import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from fastmax.backends import native

ROOT = Path(__file__).parents[2]
ARM = "aarch64-linux-gnu"
LACKS = [name for name in (f"{ARM}-g++", "qemu-aarch64") if shutil.which(name) is None]


@pytest.mark.skipif(not native.levels(), reason=native.describe())
@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no c++ to build the program with")
def test_the_kernels_of_this_machine(tmp_path: Path) -> None:
    library = find_spec("fastmax.backends.native._kernels")
    assert library is not None
    said = run(str(program("c++", tmp_path)), str(library.origin))
    assert ", ".join(native.levels()) in said


@pytest.mark.slow
@pytest.mark.skipif(bool(LACKS), reason=f"needs {', '.join(LACKS)} (Debian: g++-aarch64-linux-gnu, qemu-user)")
def test_the_kernels_of_aarch64(tmp_path: Path) -> None:
    build = tmp_path / "build"
    cross = [f"-DCMAKE_CXX_COMPILER={ARM}-g++", "-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64"]
    run(sys.executable, "-m", "cmake", "-S", str(ROOT), "-B", str(build), *cross)
    run(sys.executable, "-m", "cmake", "--build", str(build))
    emulator = ("qemu-aarch64", "-L", f"/usr/{ARM}")  # where Debian has the C library of aarch64
    said = run(*emulator, str(program(f"{ARM}-g++", tmp_path)), str(build / "_kernels.so"))
    assert said.startswith("aarch64: ")


MISUSE = """
#include "tiles/standardize.h"
int main() {
  const float row[1] = {1};
  float out[1], rstd[1];
  FM_LEVEL::load_normalized(FM_STANDARDIZE, {row, FM_F32, 0, 1, 1, 0}, 1e-6f, 1.0f, out, (int64_t)1, rstd);  // no channels
}
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no c++ to build the program with")
@pytest.mark.parametrize("flags", [(), ("-DFM_CHECKED",)], ids=["usual", "checked"])
def test_a_primitive_that_is_misused_aborts_in_checked_builds(tmp_path: Path, flags: tuple[str, ...]) -> None:
    source, built = tmp_path / "misuse.cpp", tmp_path / "misuse"
    source.write_text(MISUSE)
    run("c++", "-std=c++17", "-DFM_LEVEL=here", *flags, "-I", str(ROOT / "native"), str(source), "-o", str(built))
    done = subprocess.run([built], capture_output=True, text=True, check=False)
    assert (done.returncode == -signal.SIGABRT) == ("from.n > 0" in done.stderr) == bool(flags), done


def test_sanitizer_builds_are_checked() -> None:
    sanitized = (ROOT / "CMakeLists.txt").read_text().partition("if(FASTMAX_SANITIZE)")[2].partition("else()")[0]
    assert "-DFM_CHECKED" in sanitized


def program(compiler: str, folder: Path) -> Path:
    """Build the program with its own command."""
    built = folder / "check_kernels"
    source = ROOT / "native" / "tests" / "check_kernels.cpp"
    run(compiler, "-std=c++17", "-O1", "-I", str(ROOT / "native"), str(source), "-o", str(built), "-ldl")
    return built


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
