"""`fastmax-lab lra`: what it accepts, prints and writes, and the messages for what it cannot do."""

import json
from pathlib import Path

import pytest
from lab.tests.lra import made_up

from fastmax_lab.bench import lra as bench
from fastmax_lab.bench import training_memory
from fastmax_lab.lra import paper, tasks, train
from fastmax_lab.measurements import Recorder, read
from fastmax_lab.report import lra as report

official_task, official_load = tasks.task, tasks.load
SHORT = ["--steps", "4", "--batch", "8", "--eval-every", "2", "--checkpoint-every", "1", "--log-every", "1"]


@pytest.fixture(autouse=True)
def _tasks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("task", "load"):
        monkeypatch.setattr(f"fastmax_lab.lra.tasks.{name}", getattr(made_up, name))
    monkeypatch.setattr("fastmax_lab.lra.tasks.names", lambda: tuple(made_up.TASKS))
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--attention", "flash"], "invalid choice 'flash' for argument '--attention'"),
        (["--preset", "jax"], "invalid choice 'jax' for argument '--preset'"),
        (["--scale", "big"], "invalid choice 'big' for argument '--scale'"),
        (["--dropout-mode", "2d"], "invalid choice '2d' for argument '--dropout-mode'"),
        (["--precision", "fp8"], "invalid choice 'fp8' for argument '--precision'"),
        (["--historical", "slow"], "invalid choice 'slow' for argument '--historical'"),
        (["--eval-every", "0"], "argument --eval-every: must be at least 1, got 0"),
        (["--log-every", "0"], "argument --log-every: must be at least 1, got 0"),
        (["--checkpoint-every", "-1"], "argument --checkpoint-every: must be at least 1, got -1"),
        (["--steps", "0"], "argument --steps: must be at least 1, got 0"),
        (["--batch", "many"], "Error parsing --batch"),
        (["--lr", "-0.001"], "argument --lr: must be above 0, got -0.001"),
        (["--lr", "inf"], "argument --lr: must be above 0, got inf"),
        (["--warmup", "-1"], "argument --warmup: must be at least 0, got -1"),
        (["--dropout", "-0.1"], "argument --dropout: must be at least 0 and below 1, got -0.1"),
        (["--attention-dropout", "1"], "argument --attention-dropout: must be at least 0 and below 1, got 1.0"),
        (["--seed", "-1"], "argument --seed: must be at least 0 and below"),
        (["--threads", "0"], "argument --threads: must be at least 1"),
        (["--length", "3000"], "argument --length: must be from 16 to 2000 for listops, got 3000"),
        (["--eval-examples", "0"], "argument --eval-examples: must be at least 1, got 0"),
    ],
)
def test_a_wrong_argument_is_one_line_with_its_name_and_leaves_no_folder(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastmax_lab.lra.tasks.task", official_task)
    try:
        code = made_up.main(["train", "--task", "listops", *arguments])
    except SystemExit as stop:  # from the parser
        code = int(stop.code or 0)
    printed = capsys.readouterr().err
    assert (code, printed.count("\n")) == (2, 1), printed
    assert printed.startswith("fastmax-lab"), printed
    assert message in printed, printed
    assert not list(Path().iterdir())


@pytest.mark.parametrize("action", [["train", "--task", "text"], ["sweep", "--tasks", "text"]])
def test_a_run_that_is_refused_for_its_data_leaves_no_folder(
    action: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fastmax_lab.lra.tasks.load", official_load)
    monkeypatch.setattr("fastmax_lab.lra.tasks.task", official_task)
    assert made_up.main([*action, "--data", "empty"]) == 1
    assert "empty lacks aclImdb" in capsys.readouterr().err
    assert not Path("runs").exists()
    assert not Path("empty").exists()


def test_a_corrupt_archive_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("fastmax_lab.lra.tasks.load", official_load)
    Path("aclImdb_v1.tar.gz").write_bytes(b"this is no archive" * 99)
    assert made_up.main(["train", "--task", "text", "--data", "."]) == 1
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "aclImdb_v1.tar.gz is damaged" in printed
    assert "method" not in printed, "which decompressors were tried is nobody's business"


def test_messages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        made_up.main(["eval", "nowhere"])
    assert stop.value.code == 2
    assert "fastmax-lab lra eval: argument checkpoint: nowhere is not there" in capsys.readouterr().err
    train_text = ["train", "--task", "text", *SHORT]
    assert made_up.main(train_text) == 0
    capsys.readouterr()
    assert made_up.main(train_text) == 1
    assert "--resume continues that run" in capsys.readouterr().err
    assert made_up.main([*train_text, "--resume"]) == 0


def test_a_sweep_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Stopped in the middle of its third run, it repeats none of the first two and continues the third."""
    grid = ["sweep", "--tasks", "text", "image", "--attentions", "fastmax1", "linear", "--out", "grid", *SHORT]
    step = train.Run.step
    calls: list[str] = []

    def counted(run: train.Run, number: int) -> object:
        calls.append(run.config.attention)
        if len(calls) == 4 + 4 + 3:
            raise KeyboardInterrupt
        return step(run, number)

    monkeypatch.setattr(train.Run, "step", counted)
    monkeypatch.setenv("COLUMNS", "200")
    assert made_up.main(grid) == 130
    assert len(list(Path("grid").glob(f"*/{train.RESULT}"))) == 2
    assert "run it again" in capsys.readouterr().err
    calls.extend(["none"] * 100)
    before = len(calls)
    assert made_up.main(grid) == 0
    assert len(calls) - before == 2 + 4, "the third run had two steps left"
    printed = capsys.readouterr().out
    assert "| fastmax1 |" in printed
    assert paper.WARNING in printed
    assert len(list(Path("grid").glob(f"*/{train.RESULT}"))) == 4


def test_a_summary_shows_mean_spread_and_the_papers() -> None:
    found = [
        {"config": {"task": "text", "attention": "fastmax2"}, "test": {"accuracy": accuracy}} for accuracy in (0.6, 0.7)
    ]
    found.append({"config": {"task": "image", "attention": "fastmax4"}, "test": {"accuracy": 0.5}})
    text = report.accuracies(found)
    assert "65.00 ± 7.07 (64.30)" in text
    assert "| fastmax4 |" in text
    assert text.count("50.00") == 1


def test_the_papers_figures() -> None:
    assert paper.accuracy("softmax", "listops") == 38.37
    assert paper.accuracy("fastmax3", "listops") is None
    assert paper.speed_ratio("fastmax2", "text") == pytest.approx(3.39, abs=0.01)
    assert paper.speed_ratio("linear", "text") is None


@pytest.mark.slow
def test_bench_lra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """At toy lengths; no time is asserted."""
    monkeypatch.setattr(bench, "SHAPES", {name: made_up.TASKS[name] for name in ("text", "retrieval")})
    monkeypatch.setattr(bench, "TOKENS", 96)
    monkeypatch.setattr(bench, "EXAMPLES", 8)
    monkeypatch.setattr(bench, "peak", lambda *_: {"before": 0, "peak": 2**21})
    record = Recorder("bench lra", tmp_path / "lra.jsonl")
    bench.run(record, quick=False)
    assert read(tmp_path / "lra.jsonl") == record.made
    print(report.summary(record.made))
    assert [cell.settings["attention_dropout"] for cell in record.made] == [0.0, 0.0, 0.1, 0.1]
    assert [cell.settings["batch"] for cell in record.made] == [2, 1, 2, 1]
    assert all(set(cell.values["seconds"]) == {*bench.ATTENTIONS, bench.DATA} for cell in record.made)
    printed = capsys.readouterr().out
    assert "### retrieval, N = 48 x 2, batch 1, attention dropout 0.1" in printed
    assert "2 MiB" in printed
    assert printed.count("million tokens per second") == 4
    quick = Recorder("bench lra")
    bench.run(quick, quick=True)
    print(report.summary(quick.made))
    assert "attention dropout 0.1" not in capsys.readouterr().out


@pytest.mark.slow
def test_memory_of_a_step() -> None:
    measured = training_memory.peak("image", 1, "linear", 0.0)
    assert measured["peak"] > measured["before"] > 0
    with pytest.raises(RuntimeError, match="KeyError: 'sudoku'"):
        training_memory.peak("sudoku", 1, "linear", 0.0)


def test_one_line_of_training_now_and_then_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fastmax_lab._progress.EVERY", 0.0)
    assert made_up.main(["train", "--task", "text", *SHORT]) == 0
    said = capsys.readouterr().err.splitlines()
    # on a slow machine there are others, of pieces that take long
    lines = [line for line in said if not line.endswith("so far") and " ... " not in line]
    assert [line.partition(",")[0] for line in lines] == ["training"] * 4
    assert "training, 2/4, step 2, loss " in lines[1]
    assert "steps/s" in lines[1]
    assert "s left" in lines[1]
