"""Command lines with something wrong: exit code 2, one line that names it, no traceback, nothing written."""

from dataclasses import fields
from pathlib import Path

import pytest

from fastmax_lab import cli
from fastmax_lab.cli import COMMANDS

NEEDED = {
    "lra train": ["--task", "listops"],
    "lra eval": ["archive.tar"],
    "data get": ["mnist"],
    "data unpack": ["archive.tar"],
    "report": ["results"],
}
"""Arguments that a command must have, where the fixture has made the files."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "results").mkdir()
    (tmp_path / "archive.tar").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def wrong_lines(name: str) -> list[tuple[list[str], str]]:
    """Return command lines of a command with one thing wrong each, and the word that the error must have."""
    right = [*name.split(), *NEEDED.get(name, [])]
    lines = [([*right, word], word) for word in ("again", "--nothing", "é", "%s", "{}")]
    lines.append(([*name.split()[:-1], f"{name.split()[-1]}x", *right[len(name.split()) :]], "x"))
    for field in fields(COMMANDS[name]):
        option = f"--{field.name.replace('_', '-')}"
        if option.lstrip("-") in ("folder", "archive", "checkpoint", "name"):  # positional
            continue
        if field.type is bool:
            lines.append(([*right, f"{option}=yes"], "yes"))
            continue
        values = ["archive.tar/below", "x" * 300] if "Path" in str(field.type) else ["½", "nan", "-9999999999999"]
        lines += [([*right, option, value], option) for value in values]
        lines.append(([*right, f"{option[:-1]}?", "1"], f"{option[:-1]}?"))
        if "tuple" not in str(field.type):
            lines.append(([*right, option], option))
    return lines


@pytest.mark.parametrize("name", COMMANDS)
def test_one_line_names_what_is_wrong(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(folder.rglob("*"))
    for line, word in wrong_lines(name):
        with pytest.raises(SystemExit) as stop:
            cli.main(line)
        printed = capsys.readouterr()
        assert (stop.value.code, printed.out) == (2, ""), (line, printed)
        assert printed.err.startswith("fastmax-lab"), (line, printed.err)
        assert printed.err.count("\n") == 1, (line, printed.err)
        assert word in printed.err, (line, printed.err)
        assert "─" not in printed.err, (line, printed.err)
        assert "Traceback" not in printed.err
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ([], "reproduce, report, lra, data, bench, tune"),
        (["fly"], "fly"),
        (["bench"], "core, kernel, decode"),
        (["bench", "core", "two\nlines"], "lines"),
        (["bench", "core", "--out", "results"], "argument --out: results cannot be written"),
        (["bench", "core", "--out", "/proc/self/comm"], "argument --out: /proc/self/comm cannot be written"),
        (["bench", "kernel", "--order", "3"], "argument --order: must be at least 1 and at most 2, got 3"),
        (["lra", "train"], "--task"),
        (["lra", "sweep", "--seeds", "1", "-1"], "argument --seeds: must be at least 0"),
        (["lra", "sweep", "--tasks"], "argument --tasks: needs at least one value"),
        (["data", "unpack", "nowhere.tar"], "argument archive: nowhere.tar is not there"),
        (["lra", "eval", "nowhere"], "argument checkpoint: nowhere is not there"),
        (["report", "archive.tar"], "argument folder: archive.tar is not a folder"),
    ],
)
def test_the_line_has_the_rule(line: list[str], words: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(folder.rglob("*"))
    with pytest.raises(SystemExit) as stop:
        cli.main(line)
    printed = capsys.readouterr().err
    assert (stop.value.code, printed.count("\n")) == (2, 1), printed
    assert words in printed, printed
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["bench", "kernel", "--device", "cuda"], "argument --device: must be one of auto, cpu on this machine"),
        (["lra", "train", "--task", "image", "--device", "xpu"], "argument --device: must be one of auto, cpu"),
        (["lra", "train", "--task", "image", "--length", "100"], "argument --length: must be one of 1024, 256"),
        (["lra", "sweep", "--tasks", "listops", "--length", "9000"], "argument --length: must be from 16 to 2000"),
        (["lra", "train", "--task", "listops", "--context-parallel", "3"], "argument --context-parallel: must divide"),
        (["lra", "eval", "results"], "results/best.safetensors is not there"),
    ],
)
def test_what_only_the_machine_or_another_argument_makes_wrong(
    line: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.rglob("*"))
    assert cli.main(line) == 2
    printed = capsys.readouterr().err
    assert message in printed, printed
    assert printed.count("\n") == 1, printed
    assert sorted(folder.rglob("*")) == before
