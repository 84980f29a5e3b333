"""Experiments at a tiny size: every kind of run, resumed where it stopped, and its tables."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fastmax.cli import main
from fastmax.report import learning as tables
from fastmax.reproduce import learning, queue
from fastmax.reproduce.language import LanguageRun, language
from fastmax.reproduce.recall import RecallRun, examples, recall
from fastmax.reproduce.training import ATTENTIONS

TINY = {"names": 8, "pairs": 3, "steps": 100, "batch": 2, "width": 8, "heads": 2}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "tinyshakespeare.txt").write_bytes(b"to be, or not to be: that is the question.\n" * 200)
    return tmp_path


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_language_from_a_seed_alone(attention: str) -> None:
    letters = torch.arange(4000).remainder(7).to(torch.uint8)
    run = LanguageRun(attention, tokens=32, steps=4, batch=2, layers=1, width=16, heads=2, memory=(1.0, 2.0))
    first, second = (language(run, letters, letters, 7) for _ in range(2))
    assert first["val_loss"] == second["val_loss"]
    assert (first["reach"] is None) == (ATTENTIONS[attention]["decay"] is None)
    assert first["run"]["attention"] == attention


@pytest.mark.parametrize("attention", ["softmax", "linear", "fastmax1", "fastmax2", "fastmax2, gated"])
def test_recall_of_every_attention(attention: str) -> None:
    result = recall(RecallRun(attention, **TINY))
    assert 0 <= result["accuracy"] <= 1
    assert result["curve"][0][0] == 100
    assert (result["reach"] is not None) == attention.endswith("gated")


def test_questions_of_recall_have_their_answers() -> None:
    tokens, answers = examples(RecallRun("softmax", names=8, pairs=3, filler=2), 5, torch.Generator().manual_seed(0))
    for row, right in zip(tokens.tolist(), answers.tolist(), strict=True):
        values = dict(zip(row[0:6:2], row[1:6:2], strict=True))
        assert row[6:8] == [0, 0]
        assert right == [-100] * 8 + [values[key] for key in row[8:]]


def test_a_queue_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path, runs = tmp_path / "a" / "runs.jsonl", [RecallRun("softmax", seed=seed) for seed in range(3)]
    measured: list[int] = []

    def measure(run: RecallRun) -> dict[str, Any]:
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(run.seed)
        return {"run": json.loads(json.dumps(run.__dict__)), "accuracy": 0.5}

    with pytest.raises(KeyboardInterrupt):
        queue.work(path, runs, measure, lambda _: None)
    with path.open("a") as file:
        file.write('{"run": half of a line')
    assert [run.seed for run in queue.pending(path, runs)] == [2]
    assert len(queue.results(path)) == 2


def test_the_best_rate_of_each_attention_runs_with_more_seeds(tmp_path: Path) -> None:
    path = tmp_path / "language-128.jsonl"
    first = learning.language_runs(path, 128, 10, ["softmax"])
    assert [run.lr for run in first] == list(learning.RATES)
    lines = [{"run": dict(run.__dict__), "val_loss": abs(run.lr - 4e-3)} for run in first]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    then = learning.language_runs(path, 128, 10, ["softmax"])
    assert [(run.lr, run.seed) for run in then[3:]] == [(4e-3, 1), (4e-3, 2)]


def test_the_command_runs_prints_and_does_not_repeat(
    text: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = [RecallRun("softmax", **TINY), RecallRun("fastmax2, gated", **TINY | {"pairs": 1, "filler": 4})]
    monkeypatch.setattr(learning, "recall_runs", lambda: tiny)
    runs = learning.language_runs
    monkeypatch.setattr(
        learning, "language_runs",
        lambda *options: [replace(r, tokens=16, batch=2, layers=1, width=16, heads=2) for r in runs(*options)][:4],
    )  # fmt: skip
    out = text / "out"
    command = ["reproduce", "--tokens", "128", "--steps", "2", "--data", str(text), "--out", str(out), "--threads", "1"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "Language, 128 tokens" in shown
    assert "1 pair, 4 tokens of filler" in shown
    lines = (out / "recall.jsonl").read_text()
    assert main(command) == 0
    assert (out / "recall.jsonl").read_text() == lines


def test_tables_say_what_the_results_do() -> None:
    results = [
        {"run": {"attention": name, "lr": lr, "seed": seed, "memory": [2, 7]}, "val_loss": loss, "reach": reach}
        for name, lr, seed, loss, reach in (
            ("softmax", 0.1, 0, 2.0, None), ("softmax", 0.2, 0, 1.5, None), ("softmax", 0.2, 1, 1.7, None),
            ("fastmax2, gated", 0.1, 0, 1.25, [[1.0, 2.0]]),
        )
    ]  # fmt: skip
    table = tables.language(results)
    assert "| 0.2 | " in table.replace("     ", " ").replace("  ", " ")
    assert "1.600 ± 0.141" in table
    assert "-0.250" in table
    assert "1 2" in tables.reaches(results)
