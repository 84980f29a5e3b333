"""Items are measured once: whatever is killed goes on, what cannot be measured is left out with a reason."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.tests.experiments.miniature import experiment

from fastmax_lab._progress import Progress
from fastmax_lab.cli import main
from fastmax_lab.commands.reproduce import EXPERIMENTS
from fastmax_lab.data.files import MissingDataError
from fastmax_lab.experiments import lra, registry, runner
from fastmax_lab.experiments.items import BUDGETS, Item, Workspace, stored
from fastmax_lab.lra.run_folder import exclusive
from fastmax_lab.measurements import Measurement


def run(items: list[Item], out: Path, say: Callable[[str], None] = lambda _: None) -> runner.Outcome:
    return runner.run([experiment(items)], "quick", data=out / "none", out=out, command="it", say=say)


def item(name: str, measure: Any, **settings: Any) -> Item:
    return Item("counting", name, {"seed": 0, **settings}, measure)


def test_the_command_knows_every_experiment() -> None:
    assert tuple(registry.EXPERIMENTS) == EXPERIMENTS


def test_a_killed_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    calls: list[str] = []

    def measure(work: Workspace) -> dict[str, Any]:
        calls.append("half")
        kept = work.folder / "run"
        if not kept.exists():
            kept.mkdir()
            raise KeyboardInterrupt
        return {"value": (1, 2)}

    items = [item("first", lambda _: {"value": 1}), item("second", measure)]
    with pytest.raises(KeyboardInterrupt):
        run(items, tmp_path)
    assert list(stored("counting", tmp_path)) == ["first"]
    assert run(items, tmp_path).measured == 1
    assert calls == ["half", "half"]
    assert not list((tmp_path / runner.WORK).rglob("*")), "what only an unfinished item needs is gone"
    measurement = stored("counting", tmp_path)["second"]
    assert measurement.values == {"value": [1, 2]}
    assert measurement.settings == {"seed": 0}
    assert measurement.command == "it"
    assert measurement.machine["torch"] == torch.__version__
    assert run(items, tmp_path).measured == 0


def test_other_settings_are_another_measurement(tmp_path: Path) -> None:
    assert run([item("a", lambda _: {}, steps=1)], tmp_path).measured == 1
    assert run([item("a", lambda _: {}, steps=2)], tmp_path).measured == 1
    assert run([item("a", lambda _: {}, steps=(2,))], tmp_path).measured == 1
    assert run([item("a", lambda _: {}, steps=[2])], tmp_path).measured == 0


def test_missing_data_and_busy_items_are_left_out(tmp_path: Path) -> None:
    def absent(_: Workspace) -> dict[str, Any]:
        raise MissingDataError("get the data")

    items = [
        item("absent", absent),
        item("busy", lambda _: {}),
        item("fine", lambda _: {"threads": torch.get_num_threads()}),
    ]
    with exclusive(tmp_path / runner.WORK / "counting" / "busy"):
        said: list[str] = []
        outcome = run(items, tmp_path, said.append)
    assert outcome.measured == 1
    assert outcome.left_out == {"counting/absent": "get the data", "counting/busy": "Another process is measuring it."}
    assert said[:2] == [f"{name}: left out. {reason}" for name, reason in outcome.left_out.items()]


def test_what_others_measure_is_no_progress_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[float] = []

    class Bar(Progress):
        def show(self, done: float, label: str) -> None:  # noqa: ARG002
            shown.append(done / self.total)

    monkeypatch.setattr(runner, "Progress", Bar)
    items = [replace(item(name, lambda _: {}), cost=1.0) for name in ("busy", "a", "b")]
    with exclusive(tmp_path / runner.WORK / "counting" / "busy"):
        run(items, tmp_path)
    assert shown == [0.0, 0.0, 0.5]


def test_what_comes_next_may_depend_on_what_was_found(tmp_path: Path) -> None:
    class Tuned:
        NAME = "counting"

        @staticmethod
        def items(_budget: str, found: list[Measurement]) -> list[Item]:
            first = [item(f"rate{rate}", lambda _, r=rate: {"loss": abs(r - 2)}) for rate in (1, 2)]
            tried = [d for d in found if d.name.startswith("rate") and not d.name.endswith("again")]
            if len(tried) < 2:
                return [*first, item("last", lambda _: {"loss": 9})]
            best = min(tried, key=lambda d: d.values["loss"]).name
            return [*first, item(f"{best}-again", lambda _: {"loss": 0}), item("last", lambda _: {"loss": 9})]

    tuned: Any = Tuned()
    outcome = runner.run([tuned], "quick", data=tmp_path, out=tmp_path, command="", say=lambda _: None)
    assert outcome.measured == 4
    assert list(stored("counting", tmp_path)) == ["rate1", "rate2", "rate2-again", "last"], "in the order of the items"


@pytest.mark.parametrize("budget", BUDGETS)
def test_every_budget_has_items_with_names_of_their_own(budget: str) -> None:
    for name, one in registry.EXPERIMENTS.items():
        items = one.items(budget, [])
        assert items or (budget == "quick" and name in ("lra-clock", "lra-small")), (
            "tuning alone takes longer than a quick run"
        )
        assert len({i.name for i in items}) == len(items), name
        assert all(i.experiment == name and "seed" in i.settings and i.cost > 0 for i in items)
        assert all(set(i.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-") for i in items), name
        json.dumps([i.settings for i in items])


@pytest.mark.parametrize("budget", ["quick", "cpu"])
def test_a_training_looks_at_the_dev_set_as_often_as_was_asked(budget: str) -> None:
    for task, of in lra.TASKS[budget].items():
        assert of.steps is not None
        for looks in (1, 3, 6):
            every = lra.make_config(task, "fastmax2", {}, 0, replace(of, looks=looks)).evaluation_steps
            assert len({*range(every, of.steps, every), of.steps}) == looks


def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = {"recall": experiment([Item("recall", "a", {"seed": 0}, lambda _: {"accuracy": 1.0})])}
    monkeypatch.setattr(registry, "EXPERIMENTS", tiny)
    command = ["reproduce", "--only", "recall", "--out", str(tmp_path), "--data", str(tmp_path), "--threads", "1"]
    assert main(command) == 0
    assert "1 measured, 0 left out" in capsys.readouterr().out
    measurement = stored("recall", tmp_path)["a"]
    assert measurement.command == "fastmax-lab reproduce --budget quick --only recall --threads 1 --data DIR"
    assert main(command) == 0
    assert "0 measured" in capsys.readouterr().out
