"""The output of the README's blocks. tests/docs runs them with those of the other pages."""

import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
from tools.readme_for_pypi import readme

README = (Path(__file__).parent.parent / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.slow
def test_the_examples_satisfy_a_strict_type_checker(tmp_path: Path) -> None:
    """Check them with a user's settings and the types of the installed package; torch leaves `backward` without types."""
    pytest.importorskip("mypy")
    for i, block in enumerate(BLOCKS):
        (tmp_path / f"example_{i}.py").write_text(block)
    (tmp_path / "wrong.py").write_text('from fastmax import FastmaxState\nFastmaxState.empty(1, 2, "three")\n')
    options = ["--strict", "--untyped-calls-exclude=torch", "--config-file=", "--cache-dir", str(tmp_path / "cache")]
    command = [sys.executable, "-m", "mypy", *options, "."]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    first, *rest = result.stdout.splitlines()
    assert first.startswith("wrong.py:2: error: Argument 3"), result.stdout + result.stderr
    assert rest == [f"Found 1 error in 1 file (checked {len(BLOCKS) + 1} source files)"], result.stdout


def test_the_package_says_that_it_is_typed() -> None:
    assert files("fastmax").joinpath("py.typed").is_file()


def test_there_are_examples() -> None:
    assert len(BLOCKS) >= 2


def test_indexes_show_no_link_that_leads_nowhere() -> None:
    shown = readme(README)
    assert re.findall(r"\]\((?!https://)", README)
    assert not re.findall(r"\]\((?!https://)", shown)
    assert "- Ten minutes with fastmax, Fastmax in your own GPT, examples\n" in shown
    assert shown.count("](https://") == README.count("](https://")
    assert re.findall(r"```python\n(.*?)```", shown, re.DOTALL) == BLOCKS


def test_every_linked_file_exists() -> None:
    root = Path(__file__).parent.parent
    for target in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (root / target).exists(), target
