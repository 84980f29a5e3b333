"""The command `fastmax`: what it prints, its exit codes, and that nothing goes to a closed output."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fastmax
from fastmax.__main__ import main
from fastmax.backends import NAMES

COMMAND = [sys.executable, "-m", "fastmax"]


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    printed = capsys.readouterr().out
    for text in (fastmax.__version__, torch.__version__, *(f"backend {name}" for name in NAMES)):
        assert text in printed


def test_info_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["torch"] == torch.__version__
    assert {f"backend {name}" for name in NAMES} <= found.keys()


@pytest.mark.parametrize("arguments", [[], ["fly"], ["info", "--jsn"], ["info", "--js"], ["info", "two\nlines"]])
def test_a_wrong_argument_is_one_line_that_names_it(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    printed = capsys.readouterr()
    assert (stop.value.code, printed.out) == (2, "")
    assert printed.err.startswith("fastmax")
    assert printed.err.count("\n") == 1
    assert " ".join(arguments[-1].split() if arguments else ["{info,doctor}"]) in printed.err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert (stop.value.code, capsys.readouterr().out) == (0, f"fastmax {fastmax.__version__}\n")


def test_a_closed_output_is_no_error() -> None:
    shell = ["sh", "-c", 'exec "$@" >&-', "sh"]
    done = subprocess.run([*shell, *COMMAND, "info"], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_left_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*COMMAND, "info"], stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as output:
        done = subprocess.run([*COMMAND, "info"], stdout=output, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "fastmax: standard output: No space left on device\n"


def test_a_package_that_imports_fastmax_loads_exported_programs(tmp_path: Path) -> None:
    """Find the ops registered in `python -m mypackage`, whatever the command line looks like."""
    package = tmp_path / "mypackage"
    package.mkdir()
    (package / "__init__.py").write_text("import fastmax\n")
    (package / "__main__.py").write_text(
        "import sys, torch\nprint(torch.export.load(sys.argv[1]).module()(torch.ones(1, 2, 4, 3)).shape)\n"
    )
    exported = torch.export.export(_Attention(), (torch.ones(1, 2, 4, 3),))
    torch.export.save(exported, tmp_path / "attention.pt2")
    done = subprocess.run(
        [sys.executable, "-m", "mypackage", "attention.pt2", "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "torch.Size([1, 2, 4, 3])\n", done.stderr


class _Attention(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return fastmax.fastmax_attention(x, x, x)
