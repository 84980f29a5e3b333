"""Help and completion: made by the parser, without importing torch."""

import re
import subprocess
import sys

import pytest

from fastmax_lab import cli
from fastmax_lab.cli import COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_the_docstring_and_an_example_that_parses(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main([*name.split(), "--help"])
    assert not stop.value.code
    text, _, example = str(COMMANDS[name].__doc__).partition("Example: ")
    assert text.split("\n")[0] in capsys.readouterr().out
    if example:
        assert example.startswith(f"fastmax-lab {name} ")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["--tyro-write-completion", "bash", "-"]])
def test_what_needs_no_torch_does_not_import_it(arguments: list[str]) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "fastmax_lab", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "fastmax" in done.stdout
    assert re.search(r"\| +fastmax_lab.cli$", done.stderr, re.MULTILINE)
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)
