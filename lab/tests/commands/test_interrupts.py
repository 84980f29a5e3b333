"""Ctrl-C wherever it comes: exit code 130 and not a word, during imports too. No time is waited for, but modules."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fastmax_lab.commands.defects import keep_traceback
from fastmax_lab.commands.interrupts import in_order, leave_at_once

pytestmark = pytest.mark.usefixtures("interruptible")


def interrupted(
    command: list[str], module: str, *, times: int = 1, whole_group: bool = False
) -> tuple[int, str, list[str]]:
    """Starts `fastmax` and sends Ctrl-C as soon as the module was imported so many times: the exit code, what was printed,
    and the words on standard error."""
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


@pytest.mark.parametrize(
    "module",
    [
        "fastmax_lab.commands.defects",  # the first that the command imports
        "numpy",
        "torch.types",  # in the midst of torch
        "torch.nn",
        "fastmax_lab.bench.demo",  # at work
    ],
)
def test_ctrl_c_is_quiet(module: str) -> None:
    assert interrupted(["demo"], module) == (130, "", [])


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    command = ["lra", "train", "--task", "listops", "--length", "16", "--out", str(tmp_path / "run")]
    code, printed, words = interrupted([*command, "--data", str(tmp_path)], "fastmax_lab.lra.train")
    assert (code, printed) == (130, "")
    assert words == ["\n", "fastmax-lab lra train: stopped; run it again with --resume to go on\n"]
    assert not (tmp_path / "run").exists()


def test_the_children_of_a_terminal_are_quiet_too() -> None:
    """A terminal sends Ctrl-C to every process of the command; here as soon as the first child has imported its work."""
    bench = ["bench", "distributed", "--quick"]
    assert interrupted(bench, "fastmax_lab.bench.distributed", times=2, whole_group=True) == (130, "", [])


def test_what_an_interrupted_import_raises_instead_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), in_order() as signals:
        os.kill(os.getpid(), signal.SIGINT)
    assert signals.interrupted
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert capsys.readouterr().err == ""


def test_only_the_main_thread_has_signals() -> None:
    found = []

    def run() -> None:
        with in_order() as signals:
            found.append(signals.interrupted)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [False]


def test_a_destructor_that_is_interrupted_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    class Rude:
        def __init__(self, error: BaseException) -> None:
            self.error = error

        def __del__(self) -> None:
            raise self.error

    with in_order():
        Rude(KeyboardInterrupt())
    assert capsys.readouterr().err == ""


def test_an_ignored_signal_stays_ignored() -> None:
    """As of a job in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        leave_at_once()
        with in_order() as signals:
            os.kill(os.getpid(), signal.SIGINT)
        assert not signals.interrupted
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_defect_is_one_line_and_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    error = RuntimeError("two\nlines")
    keep_traceback(RuntimeError, error, None)
    (file,) = tmp_path.iterdir()
    assert capsys.readouterr().err == f"fastmax: a defect: RuntimeError: two lines (please report it with {file})\n"
    assert "RuntimeError: two\nlines" in file.read_text()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    keep_traceback(RuntimeError, error, None)
    assert "RuntimeError: two\nlines" in capsys.readouterr().err
