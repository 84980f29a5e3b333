"""Measurements come back from their file as they were, whoever writes beside them."""

import json
import os
import sys
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from lab.tests.records import record

from fastmax_lab.measurements import Measurement, Recorder, append, command_line, measured_here, read, slug

ONE = record({"tokens": 256, "rates": [0.1]}, {"seconds": {"best": 1.5e-05, "paired": None}, "name": "D = 64, ½"})


def append_many(path: Path, process: int) -> None:
    for number in range(20):
        append(path, record({}, {}, f"{process}-{number}"))


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "speed.jsonl"
    assert read(path) == []
    others = [replace(ONE, name="other"), replace(ONE, name="third", seconds=None)]
    for one in (ONE, *others):
        append(path, one)
    assert read(path) == [ONE, *others]
    assert len(path.read_text().splitlines()) == 3
    assert [entry.name for entry in path.parent.iterdir()] == ["speed.jsonl"], "no lock stays behind"


def test_a_record_gives_way_to_a_later_one_of_its_name(tmp_path: Path) -> None:
    path = tmp_path / "speed.jsonl"
    later = replace(ONE, values={"seconds": 2.0})
    for one in (ONE, replace(ONE, name="other"), later):
        append(path, one)
    assert read(path) == [replace(ONE, name="other"), later]


def test_a_number_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "speed.jsonl"
    append(path, ONE)
    with pytest.raises(ValueError, match="JSON compliant"):
        append(path, replace(ONE, name="other", values={"loss": float("nan")}))
    assert read(path) == [ONE]


def test_processes_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "speed.jsonl"
    processes = [get_context("spawn").Process(target=append_many, args=(path, number)) for number in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert {one.name for one in read(path)} == {f"{process}-{number}" for process in range(2) for number in range(20)}


def read_lines(path: Path, pipe: Any) -> None:
    with path.open() as lines:
        pipe.send([json.loads(line)["name"] for line in lines])


def test_a_pipe_gets_every_record(tmp_path: Path) -> None:
    """Its reader sees one text of them, and nothing is read from it."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    context = get_context("spawn")
    found, pipe = context.Pipe(duplex=False)
    reader = context.Process(target=read_lines, args=(path, pipe))
    reader.start()
    recorder = Recorder("bench", path)
    for name in ("one", "two"):
        recorder.add(name, {}, {})
    os.close(recorder._pipe)
    assert found.recv() == ["one", "two"]
    reader.join()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_device_is_named_and_not_read() -> None:
    """It would give zeros without end."""
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        Recorder("bench", Path("/dev/full")).add("one", {}, {})


def test_a_file_of_anything_else_is_refused_before_measuring(tmp_path: Path) -> None:
    (path := tmp_path / "target.json").write_text("{}\n")
    (tmp_path / "link.json").symlink_to("target.json")
    with pytest.raises(ValueError, match=r"link\.json, line 1 is no measurement"):
        Recorder("bench", tmp_path / "link.json")
    assert path.read_text() == "{}\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is not JSON"),
        ("[1]", "expected an object with experiment, name,"),
        ({"values": ...}, "expected an object with experiment, name,"),
        ({"more": 1}, "expected an object with experiment, name,"),
        ({"settings": [1]}, "settings is missing or of another type"),
        ({"machine": 3}, "machine is missing"),
        ({"machine": {"torch": "2"}}, r"machine\.processor, machine\.cores is missing"),
    ],
)
def test_a_file_of_anything_else_is_refused(line: str | dict[str, object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "speed.jsonl"
    append(path, ONE)
    if isinstance(line, dict):
        changed = ONE.__dict__ | line
        line = json.dumps({name: value for name, value in changed.items() if value is not ...})
    path.write_text(f"{path.read_text()}{line}\n")
    with pytest.raises(ValueError, match=message):
        read(path)


def test_a_record_of_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "speed.jsonl"
    made = measured_here("speed", "a", {"grid": (1, 2)}, {"seconds": 1.0})
    append(path, made)
    assert read(path) == [made]
    assert isinstance(made, Measurement)
    assert made.settings == {"grid": [1, 2]}
    assert {"processor", "generation", "threads", "torch", "fastmax", "date"} <= made.machine.keys()
    assert made.command.startswith("fastmax-lab")


def test_names() -> None:
    assert slug("fastmax2, gated", "", 0.004, "seed1") == "fastmax2-gated-0.004-seed1"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["/bin/fastmax-lab", "bench", "core", "--out", "/home/me/core.jsonl", "--quick"],
            "fastmax-lab bench core --quick",
        ),
        (["/lib/fastmax_lab/__main__.py", "bench", "core"], "fastmax-lab bench core"),
        (["folder/picture.py", "--picture", "a.png", "--quick"], "python picture.py --quick"),
    ],
)
def test_commands_name_no_file_of_a_machine(arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", arguments)
    assert command_line() == said


def test_the_stored_results_are_measurements() -> None:
    """One format: every file but those of the examples of conversion, which need no lab."""
    results = Path(__file__).parents[1] / "results"
    files = [path for path in results.rglob("*") if path.suffix not in ("", ".png") and path.parent.name != "convert"]
    for path in files:
        assert path.suffix == ".jsonl"
        found = read(path)
        assert {one.experiment for one in found} == {
            f"bench {path.stem.split('-')[0]}" if path.parent.name == "bench" else path.stem
        }
        assert len({one.name for one in found}) == len(found)
