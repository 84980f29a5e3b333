"""Help: quick, with examples that are right, and no wider than a terminal."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from lab.tests.commands.tree import leaves

from fastmax_lab import cli
from fastmax_lab.commands.parser import Parser

LEAVES = dict(leaves())


@pytest.mark.parametrize("path", LEAVES, ids="-".join)
def test_help_has_examples_and_fits(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stop:
        cli.main([*path, "--help"])
    assert stop.value.code == 0
    text, examples = capsys.readouterr().out.split("\nexamples:\n")
    assert all(len(line) <= 80 for line in text.splitlines())
    assert all(line.startswith(f"  fastmax {' '.join(path)}") for line in examples.splitlines())


def examples() -> list[str]:
    parsers = [cli.parser(), *LEAVES.values()]
    return [example for parser in parsers if isinstance(parser, Parser) for example in parser.examples]


@pytest.mark.parametrize("example", examples())
def test_an_example_is_right(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It parses, where the files and folders are that it names."""
    monkeypatch.chdir(tmp_path)
    for folder in ("runs/lra/listops-fastmax2-seed0", "out/quick"):
        Path(folder).mkdir(parents=True)
    for file in ("lra_release.gz", "best.safetensors"):
        Path(file).touch()
    command = shlex.split(example.partition(" > ")[0])
    assert command[0] == "fastmax"
    if command[-1] == "--help":
        with pytest.raises(SystemExit):
            cli.parser().parse_args(command[1:])
    else:
        cli.parser().parse_args(command[1:])


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["lra", "train", "--help"], ["completion", "bash"]])
def test_what_needs_no_torch_does_not_import_it(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "fastmax_lab", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "fastmax" in done.stdout
    assert re.search(r"\| +fastmax_lab.cli$", done.stderr, re.MULTILINE)
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)
