"""The command: what it prints, what it writes, what it refuses. Benchmarks run here at toy sizes; no time is asserted."""

import io
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fastmax import __version__, cli
from fastmax._progress import Progress
from fastmax.backends import NAMES, native
from fastmax.bench import core, decode, demo, dropout, kernel, long, measure, memory
from fastmax.report import kernel as kernel_report
from fastmax.report.table import milliseconds, table, times

needs_kernel = pytest.mark.skipif(not native.levels(), reason=f"the native backend is {native.describe()}")


def test_version_and_info(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert cli.main(["info"]) == 0
    printed = capsys.readouterr().out
    assert f"fastmax {__version__}" in printed
    assert torch.__version__ in printed
    for name in NAMES:
        assert f"backend {name}" in printed


@pytest.mark.parametrize(
    "arguments", [[], ["bench"], ["bench", "nothing"], ["bench", "core", "--threads", "0"], ["fly"]]
)
def test_a_wrong_command_says_what_there_is(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    assert "usage: fastmax" in capsys.readouterr().err


def test_demo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "TOKENS", [16, 32])
    assert cli.main(["demo"]) == 0
    printed = capsys.readouterr().out
    rows = [line.split("|") for line in printed.splitlines() if line.startswith("| ")]
    errors = [float(cell) for row in rows if row[1].strip() in ("1", "2", "3", "4") for cell in row[3:6]]
    assert len(errors) == 24
    assert max(errors) < 1e-5
    assert "| 32 " in printed


def test_bench_core(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setattr(core, "MEMORY_TOKENS", [8192, 16384])
    monkeypatch.setattr(core, "TIME_TOKENS", [64, 128])
    monkeypatch.setattr(core, "LITERAL", {"tokens": 32, "head_dim": 4, "heads": 1})
    out = tmp_path / "new" / "core.json"
    assert cli.main(["bench", "core", "--out", str(out), "--threads", "1"]) == 0
    measured = json.loads(out.read_text())
    assert measured["machine"]["torch"] == torch.__version__
    assert measured["machine"]["threads"] == 1
    assert [m["tokens"] for m in measured["memory"]] == [8192, 16384] * len(NAMES)
    assert all(m["tensors"] == 8 * m["tokens"] * 64 * 4 for m in measured["memory"])
    # the tensors themselves, 16 and 32 MiB, are in the peak; the system counts pages in batches, so not to the byte
    assert all(m["peak"] - m["before"] > 0.8 * m["tensors"] for m in measured["memory"])
    assert {m["is_causal"] for m in measured["literal"]} == {False, True}
    assert "per doubling" in capsys.readouterr().out
    assert list(out.parent.iterdir()) == [out], "no draft is left behind"


def test_a_failed_measurement_of_memory_tells_why() -> None:
    with pytest.raises(RuntimeError, match="order must be from 1 to 4, got 9"):
        memory.peak(tokens=8, head_dim=4, order=9, is_causal=False, backend="auto")


@needs_kernel
def test_bench_kernel(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cells = [
        kernel.Cell(64, 16, order, is_causal, backward, dtype, heads=2)
        for order in (1, 2)
        for is_causal in (False, True)
        for backward in (False, True)
        for dtype in ("float32", "bfloat16")
    ]
    monkeypatch.setattr(kernel, "quick_grid", lambda: cells)
    monkeypatch.setattr(kernel, "SGEMM", 32)
    monkeypatch.setattr(kernel, "COPY", 1024)
    monkeypatch.setattr(kernel, "THREADS_TOKENS", 32)
    threads = torch.get_num_threads()
    out = tmp_path / "kernel.json"
    assert cli.main(["bench", "kernel", "--quick", "--out", str(out)]) == 0
    assert torch.get_num_threads() == threads
    measured = json.loads(out.read_text())
    assert len(measured["cells"]) == len(cells)
    contestants = {"sgemm", "sdpa", "chunked", "dense", "factorized", "native"}
    for cell in measured["cells"]:
        assert set(cell["seconds"]) - {"copy"} == contestants | ({"float32"} if cell["dtype"] == "bfloat16" else set())
    printed = capsys.readouterr().out
    assert "### forward + backward, order 2, bfloat16" in printed
    assert "Rule: the form picked takes at worst" in printed
    assert f"Threads: {threads} are " in printed
    assert cli.main(["bench", "kernel", "--quick", "--head-dim", "16", "--order", "1", "--out", str(out)]) == 0
    assert {cell["order"] for cell in json.loads(out.read_text())["cells"]} == {1}
    assert cli.main(["bench", "kernel", "--quick", "--head-dim", "32", "--out", str(out)]) == 0
    assert json.loads(out.read_text())["cells"] == []


def test_the_full_grid_is_the_documented_one() -> None:
    cells = list(kernel.full_grid())
    assert {cell.tokens for cell in cells} == {1 << n for n in range(7, 18)}
    assert {cell.head_dim for cell in cells} == {32, 64, 128}
    assert {(cell.order, cell.is_causal, cell.backward, cell.dtype) for cell in cells} == {
        (order, is_causal, backward, dtype)
        for order in (1, 2)
        for is_causal in (False, True)
        for backward in (False, True)
        for dtype in ("float32", "bfloat16")
    }
    assert all(cell.heads == 8 for cell in cells if cell.tokens <= 16384)
    assert len(list(kernel.quick_grid())) < len(cells)


def test_shares_and_the_rule() -> None:
    """Numbers made up so that the answers are round."""
    cell = {
        "tokens": 64,
        "head_dim": 1,
        "order": 1,
        "is_causal": False,
        "backward": False,
        "dtype": "float32",
        "heads": 1,
    }
    flops = 4 * 64 * 2 * 2
    seconds = {"sgemm": 2 * kernel.SGEMM**3 / flops, "copy": 1e9, "native": 2.0, "dense": 1.0, "factorized": 4.0}
    measured: dict[str, Any] = cell | {"seconds": {name: {"best": t, "median": t} for name, t in seconds.items()}}
    assert kernel_report.share_of_sgemm(measured) == pytest.approx(0.5)
    assert kernel_report.share_of_roofline(measured) == pytest.approx(4 * 64 * 4 / (8 * kernel.COPY / 1e9) / 2)
    assert "4.00x as long" in kernel_report.rule([measured])
    assert "IS BROKEN" in kernel_report.rule([measured])
    assert kernel_report.rule([]) == "Rule: no cell has both forms."


def test_bench_dropout(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setattr(dropout, "SHAPE", (1, 1, 32, 4))
    assert cli.main(["bench", "dropout", "--quick", "--out", str(tmp_path / "d.json")]) == 0
    assert len(json.loads((tmp_path / "d.json").read_text())["cells"]) == 2
    assert "quadratic" in capsys.readouterr().out


def test_bench_decode(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setattr(decode, "CONTEXTS", [8, 32])
    monkeypatch.setattr(decode, "PREFILL", 8)
    monkeypatch.setattr(decode, "HEAD_DIM", 4)
    assert cli.main(["bench", "decode", "--quick", "--out", str(tmp_path / "d.json")]) == 0
    cells = json.loads((tmp_path / "d.json").read_text())["cells"]
    assert [cell["context"] for cell in cells] == [8, 32]
    assert all(set(cell["seconds"]) == {"fastmax", "softmax", "copy"} for cell in cells)
    assert "Slowest over fastest context" in capsys.readouterr().out


def test_bench_long(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setattr(long, "TOKENS", 4096)
    monkeypatch.setattr(long, "QUARTER", 1024)
    monkeypatch.setattr(long, "LAST", 50)
    assert cli.main(["bench", "long", "--quick", "--out", str(tmp_path / "l.json")]) == 0
    measured = json.loads((tmp_path / "l.json").read_text())
    assert measured["tokens"] == [64, 256]
    assert 0 < measured["error"] < 1e-5
    assert "relative error of the last 50 outputs" in capsys.readouterr().out


def test_interleave_takes_turns() -> None:
    order: list[str] = []
    timings = measure.interleave(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=3, least_seconds=0.0
    )
    assert order == ["a", "a", "b", "b", *["a", "b"] * 3]
    assert all(0 < t.best <= t.median for t in timings.values())


def test_a_slow_contestant_sits_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    turns: list[str] = []

    def contestant(name: str, seconds: float) -> Callable[[], None]:
        def call() -> None:
            turns.append(name)
            clock[0] += seconds

        return call

    contestants = {"fast": contestant("fast", 0.5), "slow": contestant("slow", 3.0)}
    timings = measure.interleave(contestants, rounds=4, least_seconds=0.0, slow=(2.0, 1))
    assert turns == ["fast", "fast", "slow", "fast", "slow", "fast", "fast", "fast"]
    assert (timings["fast"].best, timings["slow"].best) == (0.5, 3.0)


def test_tables_line_up() -> None:
    assert table(["N", "time"], [["1", "10 ms"], ["1,000", "2 ms"]]).splitlines() == [
        "| N     |  time |",
        "| :---- | ----: |",
        "| 1     | 10 ms |",
        "| 1,000 |  2 ms |",
    ]
    assert [milliseconds(0.0012345), milliseconds(1.5), milliseconds(None)] == ["1.23 ms", "1,500 ms", "-"]
    assert [times(1.234), times(12.34), times(None)] == ["1.23x", "12.3x", "-"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_seen_in_a_terminal_only() -> None:
    for stream in (Terminal(), io.StringIO()):
        with Progress(2, stream) as bar:
            bar.step("first")
            bar.step("second")
        assert ("1/2" in stream.getvalue() and "second" in stream.getvalue()) == stream.isatty()


def test_the_module_runs_as_a_command() -> None:
    done = subprocess.run([sys.executable, "-m", "fastmax.cli", "info"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "backend chunked" in done.stdout
