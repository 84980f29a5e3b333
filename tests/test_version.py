"""The version stands in one place, and what else names it agrees."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

from fastmax import __version__

ROOT = Path(__file__).parent.parent


def test_every_mention_agrees() -> None:
    assert version("fastmax") == __version__
    assert re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE) == [__version__]
    headings = re.findall(r"^## (\S+), (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0][0] == __version__
    assert all(day == "unreleased" or re.fullmatch(r"\d{4}-\d\d-\d\d", day) for _, day in headings)


def test_the_build_reads_it_from_the_package() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert "version" in tomllib.loads(text)["project"]["dynamic"]
    assert not re.search(r'^version = "', text, re.MULTILINE)
