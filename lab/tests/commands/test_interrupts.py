"""Ctrl-C at any moment, also during imports: exit code 130 and no traceback. The tests wait for modules, not for times."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastmax_lab import cli
from fastmax_lab.__main__ import main

pytestmark = pytest.mark.usefixtures("interruptible")


def interrupted(
    command: list[str], module: str, *, times: int = 1, whole_group: bool = False
) -> tuple[int, str, list[str]]:
    """Start `fastmax-lab` and send Ctrl-C once the module was imported so many times.

    Returns:
        The exit code, the standard output and the lines on standard error.
    """
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "fastmax_lab", *command],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    words, seen = [], 0
    for line in process.stderr:
        if not line.startswith("import time:"):
            words.append(line)
        elif line.split("|")[-1].strip() == module:
            seen += 1
            if seen == times:
                (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
    printed = process.communicate(timeout=300)[0]
    assert seen >= times, f"{module} was imported {seen} times"
    # on a slow machine there are lines on how it goes before it is stopped
    return process.returncode, printed, [word for word in words if not re.search(r"\.\.\. [\d,]+ s$|s so far$", word)]


@pytest.mark.slow
@pytest.mark.parametrize("module", ["tyro", "numpy", "torch.types", "fastmax_lab.bench.memory"])
def test_ctrl_c_is_quiet(module: str) -> None:
    """During the imports of the command line, in the midst of torch, and at work."""
    assert interrupted(["bench", "long", "--quick"], module) == (130, "", [])


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    command = ["lra", "train", "--task", "listops", "--length", "16", "--out", str(tmp_path / "run")]
    code, printed, words = interrupted([*command, "--data", str(tmp_path)], "fastmax_lab.lra.train")
    assert (code, printed) == (130, "")
    assert words == ["\n", "fastmax-lab lra train: stopped; run it again with --resume to go on\n"]
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_children_of_a_terminal_are_quiet_too() -> None:
    """A terminal sends Ctrl-C to every process of the command; here as soon as the first child has imported its work."""
    bench = ["bench", "distributed", "--quick"]
    assert interrupted(bench, "fastmax_lab.bench.distributed", times=2, whole_group=True) == (130, "", [])


@pytest.mark.usefixtures("restored_signals")
def test_an_interrupt_that_an_import_turned_into_another_error_is_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def convert(_: object) -> int:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("half of a module") from None
        return 0

    monkeypatch.setattr(cli, "main", convert)
    assert main() == 130
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("restored_signals")
def test_an_ignored_signal_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a job in the background."""

    def work(_: object) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return 0

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    monkeypatch.setattr(cli, "main", work)
    assert main() == 0


@pytest.mark.usefixtures("restored_signals")
def test_other_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> int:
        raise RuntimeError("a defect")

    monkeypatch.setattr(cli, "main", fail)
    with pytest.raises(RuntimeError, match="a defect"):
        main()


@pytest.fixture
def restored_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
