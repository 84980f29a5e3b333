"""Training: a run repeats, resumes bit for bit after a kill, and is the same on two processes as on one."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lab.tests.lra import made_up
from safetensors.torch import load_file

from fastmax_lab.lra import checkpoint, metrics, run_folder
from fastmax_lab.lra.batches import take, training_rows
from fastmax_lab.lra.config import Intervals
from fastmax_lab.lra.evaluate import load_split
from fastmax_lab.lra.quirks import Quirks
from fastmax_lab.lra.run import RunConfig, configure
from fastmax_lab.lra.train import BEST, LATEST, RESULT, make_optimizer, step_seed, train

ROOT = Path(__file__).parents[3]
PATHS = (ROOT / "src", ROOT / "lab" / "src", ROOT)
OPTIONS = ["--steps", "30", "--batch", "8", "--eval-every", "10", "--checkpoint-every", "3", "--log-every", "1"]


@pytest.fixture(autouse=True)
def _tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("task", "load"):
        monkeypatch.setattr(f"fastmax_lab.lra.tasks.{name}", getattr(made_up, name), raising=False)
    monkeypatch.setattr("fastmax_lab.lra.tasks.names", lambda: tuple(made_up.TASKS), raising=False)


def command(*arguments: str, rank: int = 0, world: int = 1, port: int = 0) -> subprocess.Popen[str]:
    """Run `fastmax-lab lra` on made-up data in a separate process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, PATHS))}
    if world > 1:
        environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        environment |= {"LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return subprocess.Popen(
        [sys.executable, "-m", "lab.tests.lra.made_up", *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return out


def losses(folder: Path, kind: str = "train") -> list[tuple[float, float]]:
    return [(line["step"], line["loss"]) for line in metrics.read(folder, kind)]


def small(attention: str = "fastmax2", task: str = "listops", **changes: Any) -> RunConfig:
    options: dict[str, Any] = {"steps": 12, "batch": 8, "eval_every": 4, **changes}
    return configure(task, attention, **options)


def quiet(_: str) -> None:
    pass


def run(config: RunConfig, out: Path, **options: Any) -> dict[str, Any]:
    return train(config, data=Path(), out=out, intervals=Intervals(1, 3), say=quiet, **options)


def test_a_run_repeats_itself_and_says_what_it_did(tmp_path: Path) -> None:
    said: list[str] = []
    config = small(scale="learned")
    first = train(config, data=Path(), out=tmp_path / "a", intervals=Intervals(1, 3), say=said.append)
    assert first == run(config, tmp_path / "b")
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert [step for step, _ in losses(tmp_path / "a")] == list(range(1, 13))
    assert [step for step, _ in losses(tmp_path / "a", "dev")] == [4, 8, 12]
    assert first == json.loads((tmp_path / "a" / RESULT).read_text())
    assert first["test"]["examples"] == made_up.EXAMPLES["test"], "no example is left out"
    assert 0 < first["most_frequent"] <= 1
    assert first["best_step"] >= 0.2 * 12
    assert any("dev loss" in line for line in said)
    assert any("test loss" in line for line in said)
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == [
        BEST, LATEST, metrics.FILE, RESULT,
    ]  # fmt: skip
    line = metrics.read(tmp_path / "a", "train")[0]
    assert set(line) == {"step", "kind", "loss", "accuracy", "gradient_norm", "lr", "steps_per_second"}


def test_the_log_has_the_gradient_norm_before_it_is_clipped(tmp_path: Path) -> None:
    config = small(dropout=0.0, attention_dropout=0.0, clip_value=1e-6)
    run(config, tmp_path)
    torch.manual_seed(config.seed)
    made = config.make_model()
    split = load_split(config, "train", Path())
    batch = take(split, training_rows(len(split.labels), config.train.batch, config.seed, 0))
    torch.nn.functional.cross_entropy(made(batch.tokens, batch.lengths), batch.labels).backward()
    squares = sum(float(p.grad.double().square().sum()) for p in made.parameters() if p.grad is not None)
    assert metrics.read(tmp_path, "train")[0]["gradient_norm"] == pytest.approx(squares**0.5, rel=1e-5)


def test_a_resumed_log_drops_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    for first, steps, loss in ((0, range(1, 6), 1.0), (3, (4,), 0.5)):  # the second goes on after step 3
        with metrics.Metrics(tmp_path, first) as run_metrics:
            for step in steps:
                run_metrics.log(step, "train", {"loss": loss})
    assert losses(tmp_path) == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 0.5)]


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    run(small(), tmp_path / "a")
    run(small(seed=1), tmp_path / "b")
    assert losses(tmp_path / "a") != losses(tmp_path / "b")


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["early", "middle", "late"])
def test_a_killed_run_resumes_bit_for_bit(tmp_path: Path, moment: str, whole_run: Path) -> None:
    """kill -9 of a real process; then the weights, the optimizer and every loss are those of a run never killed."""
    arguments = ["train", "--task", "text", "--out", str(tmp_path), "--data", str(tmp_path), *OPTIONS]
    process = command(*arguments)
    least = {"early": 0, "middle": 14, "late": 28}[moment]
    while process.poll() is None and _lines(tmp_path) < least:
        time.sleep(0.002)
    if moment == "early":
        time.sleep(1.0)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    finish(command(*arguments, "--resume"))
    assert losses(tmp_path) == losses(whole_run)
    assert losses(tmp_path, "dev") == losses(whole_run, "dev")
    for name in (LATEST, BEST):
        ours, theirs = load_file(tmp_path / name), load_file(whole_run / name)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert (tmp_path / RESULT).read_text() == (whole_run / RESULT).read_text()
    assert not list(tmp_path.glob(".*")), "nothing half-written is left"


def _lines(folder: Path) -> int:
    path = folder / metrics.FILE
    return path.read_text().count('"train"') if path.exists() else 0


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    finish(command("train", "--task", "text", "--out", str(out), "--data", str(out), *OPTIONS))
    return out


SHARED = ["--context-parallel", "2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attention", "killed", "more"), [("fastmax2", True, []), ("fastmax2", True, SHARED), ("performer", False, [])]
)
def test_two_processes_train_as_one(tmp_path: Path, attention: str, killed: bool, more: list[str]) -> None:
    """The same loss curve but for rounding, where no random numbers are drawn, also if both are killed and resume: each
    with half of the examples, or with half of the tokens of each.

    Performer has buffers to keep in step.
    """
    arguments = ["train", "--task", "retrieval", "--attention", attention, "--data", str(tmp_path), *OPTIONS]
    arguments += ["--dropout", "0", "--attention-dropout", "0"]
    finish(command(*arguments, "--out", str(tmp_path / "one")))
    two = tmp_path / "two"
    if killed:
        both = _pair(*arguments, *more, "--out", str(two))
        while all(process.poll() is None for process in both) and _lines(two) < 14:
            time.sleep(0.002)
        for process in both:
            process.send_signal(signal.SIGKILL)
        ended = [process.communicate() for process in both]
        assert (two / LATEST).exists(), ended
        arguments.append("--resume")
    said = [finish(process) for process in _pair(*arguments, *more, "--out", str(two))]
    assert "test loss" in said[0]
    assert "loss" not in said[1], "one process speaks"
    for kind in ("train", "dev"):
        alone, together = (torch.tensor(losses(folder, kind)) for folder in (tmp_path / "one", two))
        # two roundings of a gradient per step; one and a half in all were seen
        rtol = 2 * 30 * torch.finfo(torch.float32).eps
        torch.testing.assert_close(together, alone, rtol=rtol, atol=0)
    results = [json.loads((folder / RESULT).read_text()) for folder in (tmp_path / "one", two)]
    assert results[0]["test"]["examples"] == results[1]["test"]["examples"] == made_up.EXAMPLES["test"]


def _pair(*arguments: str) -> list[subprocess.Popen[str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [command(*arguments, rank=rank, world=2, port=port) for rank in range(2)]


def test_resuming_needs_a_checkpoint_of_the_same_run(tmp_path: Path) -> None:
    run(small(), tmp_path)
    with pytest.raises(ValueError, match=r"is there already: --resume continues"):
        run(small(), tmp_path)
    with pytest.raises(ValueError, match=r"of another run; it has attention: fastmax2, not softmax"):
        run(small("softmax"), tmp_path, resume=True)
    with pytest.raises(ValueError, match=r"it has model.dropout: 0.1, not 0.2; seed: 0, not 3"):
        run(small(dropout=0.2, seed=3), tmp_path, resume=True)


def test_resuming_a_finished_run_returns_its_result(tmp_path: Path) -> None:
    result = run(small(), tmp_path)
    before = (tmp_path / LATEST).stat().st_mtime_ns
    assert run(small(), tmp_path, resume=True) == result
    assert (tmp_path / LATEST).stat().st_mtime_ns == before


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    run(small(), tmp_path)
    data = (tmp_path / LATEST).read_bytes()
    (tmp_path / LATEST).write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match=rf"{LATEST} is not a whole safetensors file"):
        run(small(), tmp_path, resume=True)
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(1)}, tmp_path / LATEST)
    with pytest.raises(ValueError, match="no checkpoint of fastmax-lab lra: its format is None"):
        run(small(), tmp_path, resume=True)


def test_a_full_disk_loses_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(small(steps=4, warmup=1), tmp_path)
    before = (tmp_path / LATEST).read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(tmp_path / LATEST, checkpoint.load(tmp_path / LATEST))
    assert (tmp_path / LATEST).read_bytes() == before
    assert not list(tmp_path.glob(".*"))


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the loss is (nan|inf) at step \d+: try a smaller --lr"):
        run(small(lr=1e30, steps=30, warmup=1), tmp_path)


def test_a_batch_must_divide_among_processes() -> None:
    from fastmax_lab.lra.batches import shard, training_rows

    rows = training_rows(100, 9, 0, 0)
    assert [len(shard(rows, r, 3)) for r in range(3)] == [3, 3, 3]
    with pytest.raises(ValueError, match="multiple of the number of processes, got 9 and 2"):
        shard(rows, 0, 2)


def test_a_learned_scale_does_not_decay() -> None:
    config = small(preset="google", scale="learned")
    groups = make_optimizer(config.make_model(), config).param_groups
    assert [(group["weight_decay"], len(group["params"])) for group in groups][1] == (0.0, config.model.layers)
    assert groups[0]["weight_decay"] == 0.1


def test_random_numbers_differ_by_seed_step_and_rank() -> None:
    seeds = {step_seed(seed, step, rank) for seed in range(4) for step in range(50) for rank in range(3)}
    assert len(seeds) == 600


@pytest.mark.parametrize("flag", ["moving_dev", "drop_last"])
def test_historical_evaluation(tmp_path: Path, flag: str) -> None:
    """Other examples are scored; what is learned is the same, bit for bit, as no step looks at an evaluation."""
    result = run(small(task="image", quirks=Quirks(**{flag: True}), eval_examples=10), tmp_path / "old")
    run(small(task="image", eval_examples=10), tmp_path / "correct")
    assert result["test"]["examples"] == (8 if flag == "drop_last" else 10)
    assert losses(tmp_path / "old") == losses(tmp_path / "correct")
    assert losses(tmp_path / "old", "dev") != losses(tmp_path / "correct", "dev")


@pytest.mark.parametrize("flag", ["zero_is_padding", "full_length_mean"])
def test_historical_masks(tmp_path: Path, flag: str) -> None:
    """No made-up pixel is black and no image is padded, so these two change no logit here.

    In fp64 and by one pass: a mask that hides nothing may send a library down another path, of other roundings, and
    training multiplies those.
    """
    config = small(task="image", quirks=Quirks(**{flag: True}), eval_examples=10)
    assert run(config, tmp_path)["test"]["examples"] == 10
    batch = take(made_up.load("image", "val", Path()), np.arange(10), trim=False)
    correct = small(task="image").make_model().double().eval()
    historical = config.make_model().double().eval()
    historical.load_state_dict(correct.state_dict())
    torch.testing.assert_close(historical(batch.tokens, batch.lengths), correct(batch.tokens, batch.lengths))


@pytest.mark.slow
def test_two_runs_in_one_folder_are_refused(tmp_path: Path) -> None:
    """While one holds it; and a kill -9 of the holder frees it."""
    arguments = ["train", "--task", "text", "--out", str(tmp_path / "run"), "--data", str(tmp_path), *OPTIONS]
    first = command(*arguments, "--steps", "100000", "--eval-every", "100000")
    while first.poll() is None and _lines(tmp_path / "run") < 3:
        time.sleep(0.002)
    for more in ([], ["--resume"]):
        second = command(*arguments, *more)
        _, err = second.communicate(timeout=60)
        assert second.returncode == 1
        assert err.count("\n") == 1
        assert f"run is in use by another run (process {first.pid}): wait for its end, or give another --out" in err
    assert first.poll() is None, "the first goes on"
    first.send_signal(signal.SIGKILL)
    first.communicate()
    with pytest.raises(ValueError, match="is there already: --resume continues"):
        run(small(), tmp_path / "run")


@pytest.mark.slow
def test_a_terminated_run_ends_in_order(tmp_path: Path) -> None:
    process = command("train", "--task", "text", "--out", str(tmp_path / "run"), "--data", str(tmp_path), *OPTIONS)
    while process.poll() is None and _lines(tmp_path / "run") < 3:
        time.sleep(0.002)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in err
    assert not (tmp_path / "run" / run_folder.LOCK).exists()


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_run_is_quiet(tmp_path: Path) -> None:
    # so many steps that it cannot end by itself meanwhile
    long = ("--steps", "100000", "--eval-every", "100000")
    process = command(
        "train", "--task", "text", "--out", str(tmp_path / "run"), "--data", str(tmp_path), *OPTIONS, *long
    )
    while process.poll() is None and _lines(tmp_path / "run") < 3:
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.strip() == "fastmax-lab lra train: stopped; run it again with --resume to go on"


def test_runs_that_cannot_be_leave_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to evaluate: 5 examples fill no batch of 8"):
        run(small(quirks=Quirks(drop_last=True), eval_examples=5), tmp_path / "deep" / "run")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="log_every must be at least 1, got 0"):
        Intervals(log_every=0)
    with pytest.raises(ValueError, match="checkpoint_every must be at least 1, got -5"):
        Intervals(checkpoint_every=-5)
