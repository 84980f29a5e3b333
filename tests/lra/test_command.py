"""`fastmax lra`: what it accepts, prints and writes, and the messages for what it cannot do."""

import json
from pathlib import Path
from typing import Any

import pytest

from fastmax.bench import lra as bench
from fastmax.bench import training_memory
from fastmax.lra import command, paper, sweep, train
from tests.lra import made_up

pytest.importorskip("accelerate")
pytest.importorskip("tensorboard")

SHORT = ["--steps", "4", "--batch", "8", "--eval-every", "2", "--checkpoint-every", "1", "--log-every", "1"]


@pytest.fixture(autouse=True)
def _tasks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("task", "load"):
        monkeypatch.setattr(f"fastmax.lra.tasks.{name}", getattr(made_up, name))
    monkeypatch.setattr("fastmax.lra.tasks.names", lambda: tuple(made_up.TASKS))
    monkeypatch.setattr(made_up, "install", lambda: None)
    monkeypatch.chdir(tmp_path)


def test_train_then_evaluate(capsys: pytest.CaptureFixture[str]) -> None:
    assert made_up.main(["train", "--task", "listops", *SHORT]) == 0
    out = Path("runs/lra/listops-fastmax2-seed0")
    tested = json.loads((out / train.RESULT).read_text())["test"]
    assert f"written to {out}" in capsys.readouterr().out
    for what in (out, out / train.BEST):
        assert made_up.main(["eval", str(what), "--data", "."]) == 0
        printed = capsys.readouterr().out
        assert f"test: loss {tested['loss']:.4f}, accuracy {tested['accuracy']:.4f} (21 examples)" in printed
    assert made_up.main(["eval", str(out), "--split", "val"]) == 0
    assert "(23 examples)" in capsys.readouterr().out


def test_messages(capsys: pytest.CaptureFixture[str]) -> None:
    train_text = ["train", "--task", "text", *SHORT]
    for arguments, message in (
        ([*train_text, "--attention", "flash"], "attention must be one of softmax"),
        ([*train_text, "--preset", "jax"], "preset must be one of"),
        ([*train_text, "--scale", "big"], "scale must be one of paper, sqrt, learned, got 'big'"),
        ([*train_text, "--historical", "slow"], "historical flags are all"),
        (["eval", "nowhere"], "nowhere is not there"),
    ):
        assert made_up.main(arguments) == 1
        assert message in capsys.readouterr().err
    assert made_up.main(train_text) == 0
    capsys.readouterr()
    assert made_up.main(train_text) == 1
    assert "--resume continues that run" in capsys.readouterr().err
    assert made_up.main([*train_text, "--resume"]) == 0


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "accelerate" else name)
    assert made_up.main(["train", "--task", "text", *SHORT]) == 1
    assert "accelerate missing: pip install 'fastmax[lra]'" in capsys.readouterr().err


def test_a_sweep_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Stopped in the middle of its third run, it repeats none of the first two and continues the third."""
    grid = ["sweep", "--tasks", "text", "image", "--attentions", "fastmax1", "linear", "--out", "grid", *SHORT]
    steps = train._step
    calls: list[str] = []

    def counted(*arguments: Any) -> object:
        calls.append(arguments[4].attention)
        if len(calls) == 4 + 4 + 3:
            raise KeyboardInterrupt
        return steps(*arguments)

    monkeypatch.setattr(train, "_step", counted)
    assert made_up.main(grid) == 130
    assert len(sweep.results(Path("grid"))) == 2
    assert "run it again" in capsys.readouterr().err
    calls.extend(["none"] * 100)
    before = len(calls)
    assert made_up.main(grid) == 0
    assert len(calls) - before == 2 + 4, "the third run had two steps left"
    printed = capsys.readouterr().out
    assert "| fastmax1 |" in printed
    assert paper.WARNING in printed
    assert len(sweep.results(Path("grid"))) == 4


def test_a_summary_shows_mean_spread_and_the_papers() -> None:
    found = [
        {"config": {"task": "text", "attention": "fastmax2"}, "test": {"accuracy": accuracy}} for accuracy in (0.6, 0.7)
    ]
    found.append({"config": {"task": "image", "attention": "fastmax4"}, "test": {"accuracy": 0.5}})
    text = sweep.summary(found)
    assert "65.00 ± 7.07 (64.30)" in text
    assert "| fastmax4 |" in text
    assert text.count("50.00") == 1


def test_the_papers_figures() -> None:
    assert paper.accuracy("softmax", "listops") == 38.37
    assert paper.accuracy("fastmax3", "listops") is None
    assert paper.speed_ratio("fastmax2", "text") == pytest.approx(3.39, abs=0.01)
    assert paper.speed_ratio("linear", "text") is None
    assert command.TASKS == paper.TASKS == tuple(made_up.TASKS)


def test_bench_lra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """At toy lengths; no time is asserted."""
    monkeypatch.setattr(bench, "SHAPES", {name: made_up.TASKS[name] for name in ("text", "retrieval")})
    monkeypatch.setattr(bench, "TOKENS", 96)
    monkeypatch.setattr(bench, "EXAMPLES", 8)
    monkeypatch.setattr(bench, "peak", lambda *_: {"before": 0, "peak": 2**21})
    bench.run(str(tmp_path / "lra.json"), quick=False)
    measured = json.loads((tmp_path / "lra.json").read_text())
    assert [cell["attention_dropout"] for cell in measured["cells"]] == [0.0, 0.0, 0.1, 0.1]
    assert [cell["batch"] for cell in measured["cells"]] == [2, 1, 2, 1]
    assert all(set(cell["seconds"]) == {*bench.ATTENTIONS, bench.DATA} for cell in measured["cells"])
    printed = capsys.readouterr().out
    assert "### retrieval, N = 48 x 2, batch 1, attention dropout 0.1" in printed
    assert "2 MiB" in printed
    assert printed.count("million tokens per second") == 4
    bench.run(None, quick=True)
    assert "attention dropout 0.1" not in capsys.readouterr().out


def test_memory_of_a_step() -> None:
    measured = training_memory.peak("image", 1, "linear", 0.0)
    assert measured["peak"] > measured["before"] > 0
    with pytest.raises(RuntimeError, match="KeyError: 'sudoku'"):
        training_memory.peak("sudoku", 1, "linear", 0.0)


def test_the_shapes_of_the_bench_are_the_tasks() -> None:
    from fastmax.lra.tasks import image, listops, pathfinder, retrieval, text

    for module in (image, listops, pathfinder, retrieval, text):
        ours = bench.SHAPES[module.TASK.name]
        theirs = module.TASK
        assert (ours.length, ours.classes, ours.pair, ours.pads) == (
            theirs.length, theirs.classes, theirs.pair, theirs.pads,
        )  # fmt: skip
