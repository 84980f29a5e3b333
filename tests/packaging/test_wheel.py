"""The wheel in an environment with torch and numpy alone, used from another folder."""

import json
import platform
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fastmax import __version__
from tests.packaging.bare import Bare

pytestmark = pytest.mark.packaged

SMOKE = Path(__file__).parents[2] / "tools/smoke.py"
USE = """
import sys, torch, fastmax
q, k, v = (torch.randn(1, 2, 100, 16, requires_grad=True) for _ in range(3))
fastmax.fastmax_attention(q, k, v, is_causal=True).sum().backward()
assert "site-packages" in fastmax.__file__, fastmax.__file__
unwanted = {"accelerate", "transformers", "matplotlib", "rich", "safetensors", "triton", "onnx"}
assert not unwanted & set(sys.modules), unwanted & set(sys.modules)
print(fastmax.__version__)
"""


def test_the_library_works(bare: Bare, tmp_path: Path) -> None:
    assert bare.run([bare.python, "-c", USE], tmp_path).strip() == __version__
    assert "right, with" in bare.run([bare.python, SMOKE], tmp_path)


def test_the_command_works(bare: Bare, tmp_path: Path) -> None:
    for command in ([bare.command], [bare.python, "-m", "fastmax"]):
        assert bare.run([*command, "--version"], tmp_path) == f"fastmax {__version__}\n"
    facts = json.loads(bare.run([bare.command, "info", "--json"], tmp_path))
    assert "generic" in facts["backend native"]
    assert "mnist" in bare.run([bare.command, "data", "list", "--data", "."], tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lra", "train", "--task", "listops"], "pip install 'fastmax[lra]'"),
        (["report", "."], "pip install 'fastmax[report]'"),
        (["bench", "generate"], "pip install 'fastmax[hf]'"),
        (["reproduce"], "pip install 'fastmax[lra]'"),
    ],
)
def test_a_missing_extra_is_named(arguments: list[str], message: str, bare: Bare, tmp_path: Path) -> None:
    done = subprocess.run([bare.command, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if not line.endswith(" s")]  # on a slow machine: loading ... 3 s
    assert (done.returncode, len(said)) == (1, 1), done.stderr
    assert message in said[0]
    assert not list(tmp_path.iterdir())


def test_what_the_wheel_is(wheel: Path) -> None:
    """For every Python, and for every Linux of the last ten years; the version is the package's."""
    assert re.match(rf"fastmax-{re.escape(__version__)}-py3-none-", wheel.name)
    if sys.platform == "linux":
        assert "manylinux" in wheel.name
        assert wheel.stem.endswith(platform.machine())
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert sum(name.endswith("/_kernels.so") for name in names) == 1
        assert "fastmax/py.typed" in names
        assert "fastmax/report/page/page.css" in names
        assert not [name for name in names if not name.startswith(("fastmax/", "fastmax-"))]
        metadata = archive.read(f"fastmax-{__version__}.dist-info/METADATA").decode()
    for extra in ("lra", "hf", "report", "triton", "onnx", "all"):
        assert f"Provides-Extra: {extra}\n" in metadata
    assert "License-Expression: Apache-2.0" in metadata
