"""Files and modules that pages, sources and settings name are there."""

import importlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastmax.__main__ import parser
from tests.docs.blocks import ROOT

FOLDERS = (".ci", ".github", "docs", "examples", "lab", "native", "src", "tests", "tools")
KINDS = (".md", ".py", ".cpp", ".h", ".sh", ".yml", ".toml", ".ipynb", ".cff", ".css", ".js", "")
FILE = re.compile(r"(?<![\w/.*{}:-])((?:[\w-]+/)+[\w.-]*[\w-]\.(?:py|md|sh|cpp|h|ipynb|yml|toml))\b")
MODULE = re.compile(r"(?<![\w/.-])(fastmax(?:_lab)?(?:\.[a-z_]\w*)+)(?![\w/-])")
TARGET = re.compile(r"(?:`|run: |^)make ([a-z][a-z-]*)", re.MULTILINE)
COMMAND = re.compile(r"(?:`|run: |bin/)(fastmax|fastmax-lab) ([a-z][a-z-]*)\b(?!\.)")
OTHER_NAMES = {
    "fastmax.attic", "fastmax_lab.gone",  # which tests make up
    "fastmax.backends.native._kernels",  # no Python module
    "fastmax.backward", "fastmax.forward", "fastmax.forward.default",  # ops
    "fastmax.cache", "fastmax.convert", "fastmax.window_state",  # formats of files
    "fastmax.gate", "fastmax.head_scale", "fastmax.shape",  # attributes of a module's child and of a variable
}  # fmt: skip
MADE_UP = re.compile(r"NAME|^(archive|data|repository|sys|convert/index|folder|out)\b")
"""Placeholders, headers of the system, and files that tests write."""


def sources() -> Iterator[Path]:
    """Yield what people read: no results, no history of changes, nothing that was built."""
    for path in ROOT.iterdir():
        if path.is_file() and path.suffix in KINDS and path.name != "CHANGELOG.md" and not path.name.startswith("."):
            yield path
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            parts = path.relative_to(ROOT).parts
            if (
                path.is_file()
                and path.suffix in KINDS
                and "__pycache__" not in parts
                and parts[:2] != ("lab", "results")
            ):
                yield path


@pytest.fixture(scope="module")
def endings() -> set[str]:
    """Every file by each end of its path: sources name files from a folder that is clear from where they stand."""
    found = set()
    for path in sources():
        parts = path.relative_to(ROOT).parts
        found |= {"/".join(parts[i:]) for i in range(len(parts))}
    return found


def test_files_that_are_named_exist(endings: set[str]) -> None:
    missing = [
        (path.relative_to(ROOT).as_posix(), name)
        for path in sources()
        for name in FILE.findall(path.read_text(encoding="utf-8", errors="ignore"))
        if name not in endings and not MADE_UP.search(name)
    ]
    assert not missing


def exists(name: str) -> bool:
    """Return True for a module, or a chain of attributes of one."""
    parts = name.split(".")
    found = importlib.import_module(parts[0])
    for i, part in enumerate(parts[1:], 1):
        if not hasattr(found, part):
            try:
                importlib.import_module(".".join(parts[: i + 1]))
            except ModuleNotFoundError:
                return False
        found = getattr(found, part)
    return True


def test_modules_and_names_that_are_named_exist() -> None:
    """In all sources. Those of the lab as well, where it is installed."""
    has_lab = importlib.util.find_spec("fastmax_lab") is not None
    named = {name for path in sources() for name in MODULE.findall(path.read_text(encoding="utf-8", errors="ignore"))}
    named -= OTHER_NAMES
    assert len(named) > 100
    assert not [name for name in sorted(named) if (has_lab or not name.startswith("fastmax_lab")) and not exists(name)]


def test_targets_and_commands_that_are_named_exist() -> None:
    """Those in code spans and workflows; `test_commands.py` parses the blocks of the pages."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert "demo" in targets
    missing = []
    for path in sources():
        text = path.read_text(encoding="utf-8", errors="ignore")
        missing += [(path.name, f"make {name}") for name in TARGET.findall(text) if name not in targets]
        missing += [(path.name, command) for command in COMMAND.findall(text) if not is_command(*command)]
    assert not missing


def is_command(program: str, name: str) -> bool:
    """Return True if a program has the command. Without the lab its commands are not known, and any is taken."""
    if program == "fastmax":
        return name in parser().format_usage()
    if importlib.util.find_spec("fastmax_lab") is None:
        return True
    return any(known.split()[0] == name for known in importlib.import_module("fastmax_lab.cli").COMMANDS)
