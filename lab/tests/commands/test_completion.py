"""Completion, tried in the shells themselves: what is offered is what the parsers take."""

import shutil
import subprocess
from pathlib import Path

import pytest

from fastmax_lab import cli
from fastmax_lab.commands.completion import SHELLS, nodes

CASES = {
    "fastmax ": {"demo", "info", "bench", "tune", "lra", "reproduce", "report", "data", "completion"},
    "fastmax be": {"bench"},
    "fastmax-lab bench ": {"core", "kernel", "decode", "generate", "dropout", "decay", "distributed", "long", "lra"},
    "fastmax-lab lra train --ta": {"--task"},
    "fastmax-lab lra train --task ": {"listops", "text", "retrieval", "image", "pathfinder"},
    "fastmax-lab lra train --task listops --attention fast": {"fastmax1", "fastmax2", "fastmax3", "fastmax4"},
    "fastmax-lab lra sweep --tasks listops te": {"text"},
    "fastmax-lab lra train --resume --prec": {"--precision"},
    "fastmax-lab lra train --precision ": {"no", "bf16"},
    "fastmax-lab data get m": {"mnist"},
    "fastmax-lab completion ": {"bash", "zsh", "fish"},
    "fastmax-lab data unpack ar": {"archive.tar"},
    "fastmax-lab bench kernel --device c": {"cpu", "cuda"},
    "fastmax-lab report --out fo": {"folder"},
}

BASH = """
source {script}
line={line!r}
COMP_WORDS=($line)
[[ "$line" == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_fastmax
printf '%s\\n' "${{COMPREPLY[@]}}"
"""

ZSH = """
offer() {{ for word in "$@"; do [[ "$word" == "$prefix"* ]] && print -r -- "$word"; done }}
compadd() {{ shift; offer "$@" }}
_describe() {{ offer "${{(@)${{(@P)3}}%%:*}}" }}
_files() {{ if [[ "$1" == -/ ]]; then offer *(N/); else offer *(N); fi }}
compdef() {{ }}
source {script}
line={line!r}
words=(${{=line}})
[[ "$line" == *" " ]] && words+=("")
CURRENT=${{#words}}
prefix="${{words[CURRENT]}}"
_fastmax || true
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "archive.tar").touch()
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def completed(shell: str, line: str, script: Path) -> set[str]:
    text = {
        "bash": BASH.format(script=script, line=line),
        "zsh": ZSH.format(script=script, line=line),
        "fish": f"source {script}; complete -C {line!r}",
    }[shell]
    arguments = {"bash": ["--norc", "-c"], "zsh": ["-f", "-c"], "fish": ["--no-config", "-c"]}[shell]
    done = subprocess.run([shell, *arguments, text], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return {offered.split("\t")[0].rstrip("/") for offered in done.stdout.splitlines() if offered}


@pytest.mark.parametrize("shell", SHELLS)
def test_completion(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    assert cli.main(["completion", shell]) == 0
    script = folder / ".completion"
    script.write_text(capsys.readouterr().out)
    assert subprocess.run([shell, "-n", str(script)], check=False).returncode == 0
    for line, wanted in CASES.items():
        if shell == "fish" and "--tasks" in line:
            continue  # it knows options with one value only
        offered = completed(shell, line, script)
        options = {word for word in offered if word.startswith("-")}
        assert (offered if "-" in line.split()[-1][:1] else offered - options) == wanted, line


def test_every_option_is_offered() -> None:
    """In each script, by its name; the shells were tried above."""
    tree = list(nodes(cli.parser()))
    assert len(tree) > 20
    flags = {flag for node in tree for slot in node.options for flag in slot.flags}
    assert {"--task", "--historical", "--max-size", "--version", "-h"} <= flags
    for script in (make(tree) for make in SHELLS.values()):
        assert all(flag.lstrip("-") in script for flag in flags)
