"""Hundreds of command lines with something wrong: exit code 2, one line that names it, no traceback, nothing written."""

import argparse
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.tests.commands.tree import leaves

from fastmax_lab import cli
from fastmax_lab._settings import Converter
from fastmax_lab.commands.parser import Parser

PER_COMMAND = 40
NEEDED = {("lra", "train"): ["--task", "listops"], ("data", "get"): ["mnist"], ("completion",): ["bash"]}
"""What a command line must have to be right; files and folders are made by the test."""
LEAVES = dict(leaves())


def right(path: tuple[str, ...], folder: Path) -> list[str]:
    """A command line that would run."""
    there = {("data", "unpack"): "archive.tar", ("lra", "eval"): "archive.tar", ("report",): "results"}
    return [*path, *NEEDED.get(path, []), *([str(folder / there[path])] if path in there else [])]


def wrong_values(action: argparse.Action, folder: Path) -> Iterator[str]:
    """For one option, from what is known of it."""
    if action.metavar in ("FILE", "DIR"):
        yield str(folder / "archive.tar" / "below")
        yield "x" * 300
        yield str(folder / "archive.tar") if action.metavar == "DIR" else str(folder / "results")
        return
    assert isinstance(action.type, Converter), action
    rule = action.type.rule
    if rule.choices:
        yield from ("", "nothing", rule.choices[0].upper() + "?", rule.choices[0] + " ")
        return
    yield from ("", "x", "1e", "one", "--", "0x10", "1;2", "½")
    yield from ("nan", "inf", "-inf", "1e999")
    if action.type.kind is int:
        yield from ("1.5", "9" * 40 if rule.at_most is not None or rule.below is not None else "-" + "9" * 40)
    below = rule.at_least if rule.at_least is not None else rule.above
    above = rule.at_most if rule.at_most is not None else rule.below
    if below is not None:
        yield str(action.type.kind(below) - 1)
        if rule.above is not None:
            yield str(action.type.kind(below))
    if above is not None:
        yield str(action.type.kind(above) + 1)
        if rule.below is not None:
            yield str(action.type.kind(above))


def corrupt(draw: random.Random, path: tuple[str, ...], parser: argparse.ArgumentParser, folder: Path) -> list[str]:
    """A right command line with one thing wrong, or two."""
    line = right(path, folder)
    valued = [a for a in parser._actions if a.option_strings and a.nargs != 0 and isinstance(a.type, Converter)]
    switches = [a for a in parser._actions if a.option_strings and a.nargs == 0 and a.dest not in ("help", "version")]
    kind = draw.choice(
        ["value", "value", "value", "value", "no value", "unknown", "switch", "more", "name", "misspelt"]
    )
    if kind == "value" and valued:
        action = draw.choice(valued)
        return [*line, f"{action.option_strings[-1]}={draw.choice(list(wrong_values(action, folder)))}"]
    if kind == "no value" and valued:
        return [*line, draw.choice(valued).option_strings[-1]]
    if kind == "switch" and switches:
        return [*line, f"{draw.choice(switches).option_strings[-1]}=yes"]
    if kind == "more":
        return [*line, draw.choice(["again", "", "two\nlines", "é", "%s", "{}"])]
    if kind == "name":
        at = draw.randrange(len(path))
        return [*path[:at], path[at] + draw.choice(["x", "?", " "]), *line[at + 1 :]]
    if kind == "misspelt" and valued:
        return [*line, draw.choice(valued).option_strings[-1][:-1], "1"]
    return [*line, draw.choice(["--nothing", "-z", "--no-way=3", "---", "--=", "--threads4"])]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "results").mkdir()
    (tmp_path / "archive.tar").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def listed(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


@pytest.mark.parametrize("path", LEAVES, ids="-".join)
def test_fuzz(
    path: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, parser, before = random.Random("-".join(path)), cli.parser(), listed(folder)
    monkeypatch.setattr(cli, "parser", lambda: parser)  # made once: parsing does not change it
    for _ in range(PER_COMMAND):
        line = corrupt(draw, path, LEAVES[path], folder)
        with pytest.raises(SystemExit) as stop:
            cli.main(line)
        printed = capsys.readouterr()
        assert (stop.value.code, printed.out) == (2, ""), (line, printed)
        assert printed.err.startswith("fastmax"), (line, printed.err)
        assert printed.err.endswith("\n"), (line, printed.err)
        assert printed.err.count("\n") == 1, (line, printed.err)
        assert "Traceback" not in printed.err
    assert listed(folder) == before


def test_hundreds() -> None:
    assert PER_COMMAND * len(LEAVES) >= 600


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            ["bench", "kernel", "--device", "cuda"],
            "argument --device: must be one of auto, cpu on this machine, got 'cuda'",
        ),
        (["lra", "train", "--task", "image", "--device", "xpu"], "argument --device: must be one of auto, cpu"),
        (["lra", "train", "--task", "image", "--length", "100"], "argument --length: must be one of 1024, 256"),
        (
            ["lra", "sweep", "--tasks", "listops", "--length", "9000"],
            "argument --length: must be from 16 to 2000 for listops",
        ),
        (["lra", "train", "--task", "listops", "--context-parallel", "3"], "argument --context-parallel: must divide"),
        (["lra", "eval", "results"], "argument FILE: results/best.safetensors is not there"),
    ],
)
def test_what_only_the_machine_or_another_argument_makes_wrong(
    line: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = listed(folder)
    assert cli.main(line) == 2
    printed = capsys.readouterr().err
    assert message in printed, printed
    assert printed.count("\n") == 1, printed
    assert listed(folder) == before


@pytest.mark.parametrize(
    "line",
    [
        [],
        ["bench", "core", "--threads", "none"],
        ["lra", "train", "--task", "listops", "--out", "archive.tar/x"],
        ["data", "unpack", "nowhere.tar"],
    ],
)
def test_as_a_process(line: list[str], folder: Path) -> None:
    """Without torch: a wrong argument is answered at once."""
    before = listed(folder)
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "fastmax_lab", *line], capture_output=True, text=True, check=False
    )
    said = [text for text in done.stderr.splitlines() if not text.startswith("import time:")]
    assert (done.returncode, done.stdout, len(said)) == (2, "", 1), done.stderr[-2000:]
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)
    assert listed(folder) == before


def test_unknown_arguments_are_told_by_the_command_that_does_not_know_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["bench", "kernel", "--token", "3"])
    assert capsys.readouterr().err == (
        "fastmax-lab bench kernel: unrecognized arguments: --token 3 (did you mean --tokens?)\n"
    )


def test_every_leaf_is_a_parser_of_ours() -> None:
    assert all(isinstance(parser, Parser) for parser in LEAVES.values())
