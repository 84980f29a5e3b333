"""The wheel in an environment with torch and numpy alone, used from another folder."""

import json
import platform
import re
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
unwanted = {"accelerate", "transformers", "matplotlib", "rich", "safetensors", "triton", "onnx", "fastmax_lab"}
assert not unwanted & set(sys.modules), unwanted & set(sys.modules)
print(fastmax.__version__)
"""

WITHOUT_THE_LAB = """
import importlib.util, torch, fastmax
from fastmax.models import FastmaxLM, LMConfig
assert importlib.util.find_spec("fastmax_lab") is None
layer = fastmax.FastmaxAttention(16, 2, batch_first=True, rotary=True, decay="gated")
x = torch.randn(2, 9, 16)
output, _ = layer(x, x, x, need_weights=False, is_causal=True)
output.sum().backward()
state = layer.new_state(2)
torch.testing.assert_close(torch.cat([layer.step(piece, state) for piece in x.split(4, 1)], 1), output)
assert FastmaxLM(LMConfig(10, 1, 8, 2)).generate(torch.zeros(1, 1, dtype=torch.int64), 3).shape == (1, 4)
model = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True).eval()
fastmax.replace_attention(model)
torch.export.save(torch.export.export(model, (x,)), "model.pt2")
torch.testing.assert_close(torch.export.load("model.pt2").module()(x), model(x))
print("works")
"""


def test_the_library_works(bare: Bare, tmp_path: Path) -> None:
    assert bare.run([bare.python, "-c", USE], tmp_path).strip() == __version__
    assert "right, with" in bare.run([bare.python, SMOKE], tmp_path)


def test_the_command_works(bare: Bare, tmp_path: Path) -> None:
    for command in ([bare.command], [bare.python, "-m", "fastmax"]):
        assert bare.run([*command, "--version"], tmp_path) == f"fastmax {__version__}\n"
    facts = json.loads(bare.run([bare.command, "info", "--json"], tmp_path))
    assert "generic" in facts["backend native"]
    assert not list(tmp_path.iterdir())


def test_the_library_needs_no_lab(bare: Bare, tmp_path: Path) -> None:
    """The ops are registered, a layer trains and decodes, a model is exported and loaded: with torch, numpy and the wheel."""
    assert bare.run([bare.python, "-c", WITHOUT_THE_LAB], tmp_path).strip() == "works"


def test_the_wheel_is_the_library_alone(wheel: Path) -> None:
    """It is for every Python, and for every Linux of the last ten years. It has the package's version."""
    assert re.match(rf"fastmax-{re.escape(__version__)}-py3-none-", wheel.name)
    if sys.platform == "linux":
        assert "manylinux" in wheel.name
        assert wheel.stem.endswith(platform.machine())
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert sum(name.endswith("/_kernels.so") for name in names) == 1
        assert "fastmax/py.typed" in names
        packages = {name.split("/")[1] for name in names if name.startswith("fastmax/") and name.count("/") > 1}
        assert packages == {"backends", "distributed", "integrations", "nn", "state"}
        assert not [name for name in names if not name.startswith(("fastmax/", "fastmax-"))]
        scripts = archive.read(f"fastmax-{__version__}.dist-info/entry_points.txt").decode()
        assert scripts.split() == ["[console_scripts]", "fastmax", "=", "fastmax.__main__:main"]
        metadata = archive.read(f"fastmax-{__version__}.dist-info/METADATA").decode()
    for extra in ("hf", "triton", "onnx", "all"):
        assert f"Provides-Extra: {extra}\n" in metadata
    assert "License-Expression: Apache-2.0" in metadata
    assert "Attention in linear time for PyTorch" in metadata
    assert "](docs/" not in metadata, "no link to a file that an index does not have"
    required = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", metadata, re.MULTILINE)
    assert sorted(required) == ["numpy", "torch"]
