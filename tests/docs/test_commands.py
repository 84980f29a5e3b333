"""Every command in README and docs exists, with arguments that it takes.

A command that takes hours or needs a network is not run: the parser that would parse its arguments does so.
Commands of the lab are parsed where the lab is installed.
"""

import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from fastmax.__main__ import parser
from tests.docs.blocks import BLOCKS, ROOT, Block
from tests.support import example

SHELL = [block for block in BLOCKS if block.language in ("bash", "sh", "console")]
STANDS_FOR = {"TASK": "listops", "NAME": "fastmax2", "L": "256", "S": "10", "LR": "1e-3", "MINUTES": "10"}
"""Words that the reader is to replace."""
READERS_OWN = (
    "DIR/stories260K.bin",
    "DIR/tok512.bin",
    "runs/lra/listops-fastmax2-seed0/best.safetensors",
    "lra_release.gz",
    "out/quick/result.json",
)
"""Files that a parser looks for."""


def commands(block: Block) -> list[list[str]]:
    """The words of each command of a block; comments are left out, and lines that go on are joined."""
    lines = block.code.replace("\\\n", " ").splitlines()
    parts = [
        part.partition(" > ")[0] for line in lines for part in line.split("&&")
    ]  # where output goes is the shell's
    words = [shlex.split(part, comments=True) for part in parts]
    return [[STANDS_FOR.get(word, word) for word in command] for command in words if command]


def parse_example(script: str, arguments: list[str], patch: pytest.MonkeyPatch) -> None:
    patch.syspath_prepend(str(ROOT / "examples"))  # where Python finds what stands beside a script
    patch.setattr(sys, "argv", [script, *arguments])
    example(Path(script).stem).arguments()


def check_lab(words: list[str], _: pytest.MonkeyPatch) -> None:
    cli = pytest.importorskip("fastmax_lab.cli")
    try:
        cli.parse(words)
    except SystemExit as stop:
        if stop.code:  # --help and completion end the parser with 0
            raise


def check_python(words: list[str], patch: pytest.MonkeyPatch) -> None:
    if words[0] == "-m":
        assert importlib.util.find_spec(words[1]), words
        if words[1] in ("fastmax", "fastmax_lab"):
            check([words[1].replace("_", "-"), *words[2:]], patch)
    elif words[0].startswith("examples/"):
        parse_example(words[0], words[1:], patch)
    else:
        assert (ROOT / words[0]).is_file(), words


def check_torchrun(words: list[str], patch: pytest.MonkeyPatch) -> None:
    """Check what torchrun starts: a script, or with --no-python a command."""
    start = next(i for i, word in enumerate(words) if word.endswith(".py") or word in CHECKS)
    check(words[start:] if words[start] in CHECKS else ["python", *words[start:]], patch)


def check_pip(words: list[str], _: pytest.MonkeyPatch) -> None:
    for word in words:
        for folder, extras in re.findall(r"^(\.|\./lab)\[([\w,]+)\]$", word):
            project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
            assert set(extras.split(",")) <= set(project["optional-dependencies"]), word


def check_make(words: list[str], _: pytest.MonkeyPatch) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(words) - {word for word in words if "=" in word} <= set(targets), words


CHECKS: dict[str, Callable[[list[str], pytest.MonkeyPatch], object]] = {
    "fastmax": lambda words, _: parser().parse_args(words),
    "fastmax-lab": check_lab,
    "python": check_python,
    "torchrun": check_torchrun,
    "pip": check_pip,
    "make": check_make,
    "echo": lambda *_: None,
    ".": lambda *_: None,
}


def check(words: list[str], patch: pytest.MonkeyPatch) -> None:
    assert words[0] in CHECKS, f"nothing checks the command {words[0]!r}"
    CHECKS[words[0]](words[1:], patch)


@pytest.mark.parametrize("block", SHELL, ids=lambda block: f"{block.page}:{block.line}")
def test_the_commands_of_a_block_exist(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = commands(block)
    monkeypatch.chdir(tmp_path)
    for name in READERS_OWN:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert found
    for words in found:
        check(words, monkeypatch)


@pytest.mark.parametrize(
    "wrong",
    [
        "fastmax-lab bench kernel --tokes 5",
        "make tests",
        "python examples/char_lm.py --stept 3",
        "pip install '.[al]'",
        "pip install './lab[al]'",
        "fastmax demo",
        "python -m fastmax bench",
        "ls",
    ],
)
def test_a_wrong_command_is_seen(
    wrong: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((SystemExit, AssertionError)):
        check(shlex.split(wrong), monkeypatch)
    capsys.readouterr()


def test_those_that_are_marked_run(tmp_path: Path) -> None:
    marked = [block for block in SHELL if block.mark == "run"]
    assert marked
    for block in marked:
        for words in commands(block):
            command = [sys.executable, "-m", *words] if words[0] == "fastmax" else words
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
            assert done.returncode == 0, done.stderr
