"""The command: what it prints, what it writes, what it refuses. Benchmarks run here at toy sizes; no time is asserted."""

import io
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fastmax.backends import native
from fastmax_lab import __version__, _cells, cli
from fastmax_lab._progress import Progress
from fastmax_lab.bench import core, decode, dropout, kernel, long, measure, memory, narrow
from fastmax_lab.bench.selection import Selection
from fastmax_lab.measurements import read
from fastmax_lab.report import kernel as kernel_report
from fastmax_lab.report.fit import show
from fastmax_lab.report.table import milliseconds, table, times

needs_kernel = pytest.mark.skipif(not native.levels(), reason=f"the native backend is {native.describe()}")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert (stop.value.code, capsys.readouterr().out) == (0, f"fastmax-lab {__version__}\n")


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        (ValueError("wrong\nin two lines"), 1, "fastmax-lab bench long: wrong in two lines\n"),
        (FileNotFoundError("gone"), 1, "fastmax-lab bench long: gone\n"),
        (ModuleNotFoundError(name="transformers"), 1, "fastmax-lab bench long: needs transformers: run pip install"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_goes_wrong_later(
    error: BaseException,
    code: int,
    printed: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(long, "run", fail)
    assert cli.main(["bench", "long"]) == code
    assert capsys.readouterr().err.startswith(printed)


@pytest.mark.parametrize("error", [RuntimeError("a defect"), ModuleNotFoundError(name="fastmax_lab.gone")])
def test_a_defect_keeps_its_traceback(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(long, "run", fail)
    with pytest.raises(type(error)):
        cli.main(["bench", "long"])


@pytest.mark.slow
def test_bench_core(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setattr(core, "MEMORY_TOKENS", [8192, 16384])
    monkeypatch.setattr(core, "TIME_TOKENS", [64, 128])
    monkeypatch.setattr(core, "LITERAL", {"tokens": 32, "head_dim": 4, "heads": 1})
    out = tmp_path / "new" / "core.jsonl"
    assert cli.main(["bench", "core", "--out", str(out), "--threads", "1"]) == 0
    measured = read(out)
    assert {(d.machine["torch"], d.machine["threads"]) for d in measured} == {(torch.__version__, 1)}
    assert {(d.experiment, d.command) for d in measured} == {("bench core", measured[0].command)}
    used = [d.settings | d.values for d in measured if d.settings["measured"] == "memory"]
    assert [m["tokens"] for m in used] == [8192, 16384] * len(core.BACKENDS)
    assert all(m["tensors"] == 8 * m["tokens"] * 64 * 4 for m in used)
    # the tensors themselves, 16 and 32 MiB, are in the peak; the system counts pages in batches, so not to the byte
    assert all(m["peak"] - m["before"] > 0.8 * m["tensors"] for m in used)
    literal = [d.settings["is_causal"] for d in measured if d.settings["measured"] == "literal"]
    assert sorted(literal) == [False, True]
    assert "per doubling" in capsys.readouterr().out
    assert list(out.parent.iterdir()) == [out], "no draft is left behind"


def test_a_failed_measurement_of_memory_tells_why() -> None:
    with pytest.raises(RuntimeError, match="order must be from 1 to 4, got 9"):
        memory.peak(tokens=8, head_dim=4, order=9, is_causal=False, backend="auto")


@needs_kernel
def test_bench_kernel(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cells = [
        _cells.Cell(64, 16, order, is_causal, backward, dtype, heads=2)
        for order in (1, 2)
        for is_causal in (False, True)
        for backward in (False, True)
        for dtype in ("float32", "bfloat16")
    ]
    monkeypatch.setattr(kernel, "quick_grid", lambda _: cells)
    monkeypatch.setattr(_cells, "SGEMM", 32)
    monkeypatch.setattr(_cells, "COPY", 1024)
    monkeypatch.setattr(kernel, "THREADS_TOKENS", 32)
    threads = torch.get_num_threads()
    out = tmp_path / "kernel.jsonl"
    assert cli.main(["bench", "kernel", "--quick", "--out", str(out)]) == 0
    assert torch.get_num_threads() == threads
    *measured, last = read(out)
    assert last.name == kernel.THREADS
    assert len({d.name for d in measured}) == len(measured) == len(cells)
    contestants = {"sgemm", "sdpa", "chunked", "dense", "factorized", "native"}
    for cell in (d.settings | d.values for d in measured):
        assert set(cell["seconds"]) - {"copy"} == contestants | ({"float32"} if cell["dtype"] == "bfloat16" else set())
        ours, sgemm = cell["seconds"]["native"], cell["seconds"]["sgemm"]
        assert ours["best"] == min(ours["rounds"])
        assert ours["paired"] > 0
        assert sgemm["paired"] is None
        assert len(sgemm["rounds"]) > 2 * len(ours["rounds"]), "it is measured before and after each"
    printed = capsys.readouterr().out
    assert "### forward + backward, order 2, bfloat16" in printed
    assert "Rule: the form picked takes at worst" in printed
    assert f"Threads: {threads} are " in printed


@needs_kernel
def test_bench_kernel_measures_any_length(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {"SGEMM": 32, "COPY": 1024}.items():
        monkeypatch.setattr(_cells, name, value)
    monkeypatch.setattr(kernel, "THREADS_TOKENS", 32)
    out = tmp_path / "kernel.jsonl"
    arguments = ["--tokens", "77", "--head-dim", "24", "--order", "2", "--dtype", "float32"]
    assert cli.main(["bench", "kernel", "--quick", *arguments, "--out", str(out)]) == 0
    cells = [d.settings for d in read(out) if d.name != kernel.THREADS]
    assert [(cell["tokens"], cell["head_dim"], cell["is_causal"]) for cell in cells] == [
        (77, 24, False),
        (77, 24, True),
    ]


@pytest.mark.parametrize("grid", [kernel.quick_grid, kernel.full_grid])
@pytest.mark.parametrize(
    "part", [{"tokens": (77,)}, {"head_dim": (48,)}, {"order": 1}, {"dtype": "bfloat16"}, {"tokens": (9,), "order": 1}]
)
def test_no_part_of_a_grid_is_empty(grid: Any, part: dict[str, Any]) -> None:
    cells = list(grid(Selection(**part)))
    assert cells
    for name, value in part.items():
        assert {getattr(cell, name) for cell in cells} == {*(value if isinstance(value, tuple) else [value])}


def test_the_quick_grid() -> None:
    """As it was measured so far: the corners in fp32, and four cells in bfloat16."""
    cells = list(kernel.quick_grid(Selection()))
    narrow = {(c.tokens, c.head_dim, c.order, c.backward, c.heads) for c in cells if c.dtype == "bfloat16"}
    assert narrow == {(1024, 64, 2, False, 8), (8192, 64, 2, False, 2)}
    wide = [cell for cell in cells if cell.dtype == "float32"]
    assert len(wide) == 3 * 2 * 2 * 2 + 2 * 2 * 2
    assert all(cell.order == 2 and cell.tokens > 128 for cell in wide if cell.backward)


def test_the_full_grid_is_the_documented_one() -> None:
    cells = list(kernel.full_grid(Selection()))
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
    assert len(list(kernel.quick_grid(Selection()))) < len(cells)


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
    seconds = {"sgemm": _cells.sgemm_flops() / flops, "copy": 1e9, "native": 2.0, "dense": 1.0, "factorized": 4.0}
    measured: dict[str, Any] = cell | {
        "form": "factorized",
        "seconds": {name: {"best": t, "median": t} for name, t in seconds.items()},
    }
    assert kernel_report.share_of_sgemm(measured) == pytest.approx(0.5)
    measured["seconds"]["native"]["paired"] = 2.5 * flops / _cells.sgemm_flops()
    assert kernel_report.paired_share_of_sgemm(measured) == pytest.approx(0.4)
    assert kernel_report.share_of_roofline(measured) == pytest.approx(4 * 64 * 4 / (8 * _cells.COPY / 1e9) / 2)
    assert "4.00x as long" in kernel_report.rule([measured])
    assert "IS BROKEN" in kernel_report.rule([measured])
    assert kernel_report.rule([]) == "Rule: no cell has both forms."


def test_a_closed_output_is_no_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdout", None)  # as Python starts where it is closed
    assert cli.main(["data", "list"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with Path("/dev/full").open("w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert cli.main(["data", "list"]) == 1
    assert capsys.readouterr().err == "fastmax-lab: standard output: No space left on device\n"


@pytest.mark.parametrize("out", ["folder", "file/d.jsonl", "link", "/proc/self/comm"])
def test_a_file_that_cannot_be_written_is_refused_before_measuring(
    out: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("file").touch()
    Path("link").symlink_to("nowhere/d.jsonl")
    with pytest.raises(SystemExit) as stop:
        cli.main(["bench", "dropout", "--out", out])
    assert stop.value.code == 2
    assert f"argument --out: {out} cannot be written" in capsys.readouterr().err


def test_out_writes_through_a_link(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(dropout, "TOKENS", 32)
    (tmp_path / "target.jsonl").touch()
    (tmp_path / "link.jsonl").symlink_to("target.jsonl")
    assert cli.main(["bench", "dropout", "--quick", "--out", str(tmp_path / "link.jsonl")]) == 0
    assert (tmp_path / "link.jsonl").is_symlink()
    assert read(tmp_path / "target.jsonl")


def test_bench_dropout(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setattr(dropout, "TOKENS", 32)
    assert cli.main(["bench", "dropout", "--quick", "--out", str(tmp_path / "d.jsonl")]) == 0
    cells = [d.settings | d.values for d in read(tmp_path / "d.jsonl")]
    assert {cell["backend"] for cell in cells} == {"chunked", *(["native"] if native.levels() else [])}
    assert "quadratic" in capsys.readouterr().out


def test_bench_decode(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setattr(decode, "QUICK", [(1, 8), (1, 32), (2, 8)])
    monkeypatch.setattr(decode, "PREFILL", 8)
    monkeypatch.setattr(decode, "HEAD_DIM", 4)
    assert cli.main(["bench", "decode", "--quick", "--out", str(tmp_path / "d.jsonl")]) == 0
    cells = [d.settings | d.values for d in read(tmp_path / "d.jsonl")]
    assert [(cell["batch"], cell["context"]) for cell in cells] == [(1, 8), (1, 32), (2, 8)]
    assert all(set(cell["seconds"]) == {"fastmax", "softmax", "copy"} for cell in cells)
    assert "Slowest over fastest context" in capsys.readouterr().out


def test_bench_narrow(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setattr(narrow, "CELLS", ((8, (2, 8)),))
    assert cli.main(["bench", "narrow", "--quick", "--tokens", "16", "32", "--out", str(tmp_path / "n.jsonl")]) == 0
    cells = [d.settings | d.values for d in read(tmp_path / "n.jsonl")]
    assert [(cell["tokens"], cell["backward"]) for cell in cells] == [(16, False), (16, True), (32, False), (32, True)]
    assert all(set(cell["seconds"]) == {"sdpa", "2", "8"} for cell in cells)
    assert "16, 2 beside 8" in capsys.readouterr().out


def test_bench_long(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setattr(long, "TOKENS", 4096)
    monkeypatch.setattr(long, "QUARTER", 1024)
    monkeypatch.setattr(long, "LAST", 50)
    assert cli.main(["bench", "long", "--quick", "--out", str(tmp_path / "l.jsonl")]) == 0
    (measured,) = read(tmp_path / "l.jsonl")
    assert measured.settings["tokens"] == [64, 256]
    assert 0 < measured.values["error"] < 1e-5
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


def test_a_yardstick_is_measured_before_and_after_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that slows down all the time: ratios of neighbours are right, those of bests are not."""
    clock, pace = [0.0], [1.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    turns: list[str] = []

    def contestant(name: str, work: float) -> Callable[[], None]:
        def call() -> None:
            turns.append(name)
            clock[0] += work * pace[0]
            pace[0] += 0.1

        return call

    contestants = {"sgemm": contestant("sgemm", 1.0), "a": contestant("a", 2.0), "b": contestant("b", 0.5)}
    timings = measure.interleave(contestants, rounds=3, least_seconds=0.0, yardstick="sgemm")
    assert turns[-15:] == ["sgemm", "a", "sgemm", "b", "sgemm"] * 3
    assert timings["a"].paired == pytest.approx(2.0)
    assert timings["b"].paired == pytest.approx(0.5)
    assert timings["sgemm"].paired is None
    assert timings["b"].best / timings["sgemm"].best > 0.55
    assert len(timings["a"].rounds) == 3


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


def test_a_terminal_has_a_bar() -> None:
    stream = Terminal()
    with Progress(2, "work", stream) as bar:
        bar.step("first")
        bar.step("second")
    assert "1/2" in stream.getvalue()
    assert "work" in stream.getvalue()
    assert "second" in stream.getvalue()


def test_a_total_may_change_and_seconds_are_a_share() -> None:
    stream = Terminal()
    with Progress(1, "work", stream, counted=False) as bar:
        bar.total = 8.0
        bar.show(2.0, "part")
    assert "25%" in stream.getvalue()
    assert "2/" not in stream.getvalue()


def test_without_a_terminal_there_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    stream = io.StringIO()
    with Progress(20, "work", stream) as bar:
        for number in range(20):
            bar.step(f"part {number}")
            clock[0] += 10.0
    assert stream.getvalue().splitlines() == [
        f"work, {done}/20, part {done}, {200 - 10 * done} s left" for done in range(1, 20)
    ]


@pytest.mark.parametrize("rich", [True, False])
def test_tables_in_a_terminal(rich: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not rich:
        monkeypatch.setattr("fastmax_lab.report.fit.find_spec", lambda _: None)
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    text = f"Title\n\n{table(['N', 'time'], [['1', '10 ms']])}"
    show(text)
    assert "10 ms" in stream.getvalue()
    assert (text in stream.getvalue()) == (not rich)


def test_a_reader_may_leave_early() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "fastmax_lab", "data", "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (128 + signal.SIGPIPE, "")


@needs_kernel
def test_bench_decay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from fastmax_lab.bench import decay

    monkeypatch.setattr(decay, "QUICK_CELLS", [(64, 8, 2)])
    monkeypatch.setattr(decay, "STEP", (2, 8))
    assert cli.main(["bench", "decay", "--quick", "--out", str(tmp_path / "decay.jsonl")]) == 0
    out = capsys.readouterr().out
    assert "A decoding step, 2 heads of 8" in out
    assert "64, 8, 2" in out
    assert len(read(tmp_path / "decay.jsonl")) == 5


@needs_kernel
def test_bench_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from fastmax_lab.bench import values

    monkeypatch.setattr(values, "CELLS", [(64, 8)])
    assert cli.main(["bench", "values", "--quick", "--out", str(tmp_path / "values.jsonl")]) == 0
    assert "constant tokens" in capsys.readouterr().out
    assert len(read(tmp_path / "values.jsonl")) == 2
