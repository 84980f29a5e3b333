"""Trouble in a long reproduction: trainings that diverge, settings that change, kills, other processes."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab.tests.experiments.miniature import TASK, TEXT, experiment
from lab.tests.records import MACHINE

from fastmax_lab.cli import main
from fastmax_lab.data import files
from fastmax_lab.experiments import dropout, language, lra, lra_settings, registry, runner
from fastmax_lab.experiments.dropout import DropoutRun
from fastmax_lab.experiments.items import Item, Workspace, store, stored
from fastmax_lab.lra import run_folder
from fastmax_lab.lra.run_folder import exclusive
from fastmax_lab.measurements import Measurement

STEPS = TASK.steps or 0
SHAPES: dict[str, Any] = {"data": "shapes", "examples": 20, "steps": 8, "batch": 4, "every": 8, "tested": 20}
DIVERGING = {
    "language": language.item(replace(TEXT, attention="softmax", lr=1e30)),
    "dropout": dropout.item(DropoutRun("none", 0.0, 0, lr=1e30, layers=1, dim=8, heads=1, **SHAPES), 1),
    "lra": lra.item("listops", "softmax", {}, 0, replace(TASK, lr=1e30)),
}


class Killed(BaseException):
    """As SIGKILL does, it ends everything at once, but for what `with` and `finally` do."""


class Clock:
    """In the place of `perf_counter`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(runner, "perf_counter", made)
    return made


def run(chosen: list[Item], out: Path, say: Callable[[str], None] = lambda _: None) -> runner.Outcome:
    return runner.run([experiment(chosen)], "quick", data=out / "data", out=out, command="it", say=say)


def item(name: str, measure: Callable[[Workspace], dict[str, Any]], **settings: Any) -> Item:
    return Item("counting", name, {"seed": 0, **settings}, measure)


def folder(one: Item, out: Path) -> Path:
    return out / runner.WORK / one.experiment / one.name


def measurement(one: Item, out: Path) -> Measurement:
    found = stored(one.experiment, out)[one.name]
    assert one.is_measured_by(found)
    return found


def until_killed(work: Workspace) -> dict[str, Any]:
    (work.folder / "run").mkdir(exist_ok=True)
    raise Killed


def begin(one: Item, out: Path) -> None:
    """And be killed, with something to go on with."""
    with pytest.raises(Killed):
        run([replace(one, measure=until_killed)], out)
    assert (folder(one, out) / "run").exists()


@pytest.mark.parametrize("name", DIVERGING)
def test_a_training_that_diverges_is_left_out_and_the_others_go_on(name: str, tmp_path: Path) -> None:
    diverging = DIVERGING[name]
    said: list[str] = []
    outcome = run([diverging, item("fine", lambda _: {})], tmp_path, said.append)
    assert outcome.measured == 1
    ((key, reason),) = outcome.left_out.items()
    assert key == f"{name}/{diverging.name}"
    assert reason.startswith("The training diverged: the loss is nan at step ")
    assert "--lr" not in reason, "this command has no such option"
    assert said[0] == f"{key}: left out. {reason}"
    assert not (tmp_path / runner.WORK).exists(), "there is nothing to go on with"
    assert run([diverging], tmp_path).left_out == outcome.left_out


def test_a_result_that_is_no_number_is_left_out(tmp_path: Path) -> None:
    outcome = run([item("a", lambda _: {"loss": [1.0, float("nan")]})], tmp_path)
    assert outcome.left_out == {"counting/a": "The training diverged: the result has numbers that are not finite."}
    assert not list(tmp_path.rglob("*.jsonl"))


def test_the_command_says_that_something_was_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(registry, "EXPERIMENTS", {"language": experiment([DIVERGING["language"]])})
    assert main(["reproduce", "--only", "language", "--out", str(tmp_path)]) == 1
    assert "0 measured, 1 left out" in capsys.readouterr().out


def test_what_was_kept_with_other_settings_is_discarded(tmp_path: Path) -> None:
    def measure(work: Workspace) -> dict[str, Any]:
        return {"kept": (work.folder / "run").exists()}

    begin(item("a", measure, steps=(1, 2)), tmp_path)
    assert run([item("a", measure, steps=3)], tmp_path).measured == 1
    assert measurement(item("a", measure, steps=3), tmp_path).values == {"kept": False}
    begin(item("b", measure, steps=(1, 2)), tmp_path)
    assert run([item("b", measure, steps=(1, 2))], tmp_path).measured == 1
    assert measurement(item("b", measure, steps=(1, 2)), tmp_path).values == {"kept": True}


def interrupted(one: Item, out: Path, step: int) -> None:
    """A training of the Long Range Arena that is killed after a checkpoint. Of older releases there is no note."""

    def measure(work: Workspace) -> dict[str, Any]:
        def show(share: float, _label: str) -> None:
            if share * STEPS >= step:
                raise Killed

        return one.measure(replace(work, show=show))

    with pytest.raises(Killed):
        run([replace(one, measure=measure)], out)
    (folder(one, out) / runner.NOTE).unlink()


def test_a_training_goes_on_from_a_folder_without_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lra, "INTERVALS", replace(lra.INTERVALS, log_every=1, checkpoint_every=10))
    one = lra.item("listops", "fastmax1", {}, 0, TASK)
    interrupted(one, tmp_path, step=25)
    steps: list[int] = []

    def measure(work: Workspace) -> dict[str, Any]:
        def show(share: float, _label: str) -> None:
            steps.append(round(share * STEPS))

        return one.measure(replace(work, show=show))

    assert run([replace(one, measure=measure)], tmp_path).measured == 1
    assert min(step for step in steps if step) == 22, "there was a look at the dev set, and so a checkpoint, at 21"
    resumed = measurement(one, tmp_path).values
    assert run([one], tmp_path / "whole").measured == 1
    assert measurement(one, tmp_path / "whole").values == resumed


def test_a_checkpoint_of_another_run_is_discarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lra, "INTERVALS", replace(lra.INTERVALS, log_every=1, checkpoint_every=10))
    one = lra.item("listops", "fastmax1", {}, 0, TASK)
    interrupted(one, tmp_path, step=25)
    other = lra.item("listops", "fastmax1", {}, 1, TASK)
    folder(one, tmp_path).rename(folder(other, tmp_path))
    assert run([other], tmp_path).measured == 1
    assert run([other], tmp_path / "whole").measured == 1
    assert measurement(other, tmp_path).values == measurement(other, tmp_path / "whole").values


def test_seconds_are_of_all_that_was_spent_on_an_item(tmp_path: Path, clock: Clock) -> None:
    starts = 0

    def measure(work: Workspace) -> dict[str, Any]:
        nonlocal starts
        starts += 1
        note = work.folder / runner.NOTE
        (work.folder / "run").mkdir(exist_ok=True)
        clock.now += 20
        work.show(0.1, "")
        assert json.loads(note.read_text())["seconds"] == 30 * (starts - 1) + 20, "else kill -9 loses it"
        clock.now += 1
        work.show(0.2, "")
        assert json.loads(note.read_text())["seconds"] == 30 * (starts - 1) + 20, "not at every step"
        clock.now += 9
        if starts < 3:
            raise Killed
        return {}

    for _ in range(2):
        with pytest.raises(Killed):
            run([item("a", measure)], tmp_path)
    assert run([item("a", measure)], tmp_path).measured == 1
    assert measurement(item("a", measure), tmp_path).seconds == 90


def test_seconds_of_an_item_that_kept_nothing_are_those_of_its_last_start(tmp_path: Path, clock: Clock) -> None:
    def measure(work: Workspace) -> dict[str, Any]:
        (work.folder / runner.NOTE).write_text(json.dumps({"settings": {"seed": 0}, "seconds": 50.0}))
        clock.now += 7
        raise Killed

    one = item("a", measure)
    with pytest.raises(Killed):
        run([one], tmp_path)
    assert not (tmp_path / runner.WORK).exists()
    folder(one, tmp_path).mkdir(parents=True)
    (folder(one, tmp_path) / runner.NOTE).write_text(json.dumps({"settings": {"seed": 0}, "seconds": 50.0}))
    assert run([item("a", lambda _: {})], tmp_path).measured == 1
    assert measurement(one, tmp_path).seconds == 0


def test_what_a_finished_item_left_is_removed(tmp_path: Path) -> None:
    def leave(name: str, note: dict[str, Any] | None) -> Path:
        one = item(name, lambda _: {})
        assert run([one], tmp_path).measured == 1
        left = folder(one, tmp_path)
        (left / "run").mkdir(parents=True)
        if note is not None:
            (left / runner.NOTE).write_text(json.dumps({"settings": note, "seconds": 1.0}))
        return left

    mine, old, busy, other = leave("a", {"seed": 0}), leave("b", None), leave("c", {"seed": 0}), leave("d", {"seed": 1})
    with exclusive(busy):
        outcome = run([item(name, lambda _: {}) for name in "abcd"], tmp_path)
        assert (outcome.measured, outcome.left_out) == (0, {})
        assert [(path / "run").exists() for path in (mine, old, busy, other)] == [False, False, True, True]
        assert [path.exists() for path in (mine, old)] == [False, False]


def test_results_of_another_budget_have_no_say_in_what_comes_next(tmp_path: Path) -> None:
    for task in lra_settings.CPU:
        for rate, accuracy in zip(lra_settings.RATES, (0.2, 0.4, 0.3), strict=True):
            of = replace(lra_settings.CPU[task], lr=rate)
            store(lra_settings.item(task, "softmax", 0, of), tmp_path, {"dev_accuracy": accuracy}, 1.0, MACHINE, "")
    names = {one.name for one in lra_settings.items("full", [])}
    assert {one.name for one in runner.plan([lra_settings], "full", tmp_path)} == names
    planned = {one.name for one in runner.plan([lra_settings], "cpu", tmp_path)}
    assert {name for name in planned if "seed0" not in name} == {
        f"{task}-softmax-lr0.002-seed{seed}" for task in ("image", "listops") for seed in (1, 2)
    }


def test_only_data_may_be_missing(tmp_path: Path) -> None:
    def absent(_: Workspace) -> dict[str, Any]:
        raise files.missing("mnist", tmp_path, ["digits.gz"])

    def lost(work: Workspace) -> dict[str, Any]:
        return {"bytes": (work.folder / "best.safetensors").read_bytes()}

    (reason,) = run([item("a", absent)], tmp_path).left_out.values()
    assert reason.startswith(f"mnist: {tmp_path} lacks digits.gz.")
    assert not list(tmp_path.iterdir())
    with pytest.raises(FileNotFoundError, match=r"best\.safetensors"):
        run([item("a", lost)], tmp_path)


def test_what_another_process_finished_meanwhile_is_not_left_out(tmp_path: Path) -> None:
    busy = item("busy", lambda _: {})

    def slow(_: Workspace) -> dict[str, Any]:
        store(busy, tmp_path, {}, 1.0, MACHINE, "")
        return {}

    with exclusive(folder(busy, tmp_path)):
        outcome = run([busy, item("slow", slow)], tmp_path)
    assert (outcome.measured, outcome.left_out) == (1, {})
    assert list(stored("counting", tmp_path)) == ["busy", "slow"]


@pytest.mark.parametrize("times", [1, run_folder.TRIES])
def test_a_folder_that_others_remove_is_made_again(times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, left = run_folder._lock, times

    def late(path: Path) -> int:
        nonlocal left
        left -= 1
        if left >= 0:
            path.rmdir()
            path.parent.rmdir()
        return lock(path)

    monkeypatch.setattr(run_folder, "_lock", late)
    if times == run_folder.TRIES:
        with pytest.raises(FileNotFoundError), exclusive(tmp_path / "a" / "b"):
            pass
    else:
        with exclusive(tmp_path / "a" / "b"):
            assert (tmp_path / "a" / "b" / run_folder.LOCK).exists()
    assert not list(tmp_path.iterdir())
