"""Presets, schedules and configurations: the public harnesses' tables, and JSON there and back."""

from dataclasses import FrozenInstanceError, replace

import pytest
import torch

from fastmax_lab.lra.config import TrainPreset, learning_rate
from fastmax_lab.lra.presets import preset
from fastmax_lab.lra.quirks import Quirks
from fastmax_lab.lra.run import RunConfig, configure

TASKS = ("listops", "text", "retrieval", "image", "pathfinder")


@pytest.mark.parametrize(
    ("task", "lr", "warmup", "batch", "vocabulary"),
    [
        ("listops", 1e-4, 1000, 32, 32),
        ("text", 1e-4, 80, 32, 512),
        ("retrieval", 2e-4, 800, 16, 512),
        ("image", 1e-4, 175, 256, 256),
        ("pathfinder", 2e-4, 312, 128, 512),
    ],
)
def test_skyformer(task: str, lr: float, warmup: int, batch: int, vocabulary: int) -> None:
    chosen = preset("skyformer", task)
    assert chosen.train == TrainPreset(lr, warmup, batch, 50_000)
    model = chosen.model
    assert (model.layers, model.dim, model.qkv, model.heads, model.mlp) == (2, 64, 64, 2, 128)
    assert (model.dropout, model.attention_dropout, model.pool, model.positions) == (0.1, 0.1, "mean", "learned")
    assert (model.performer_features, model.reformer_rounds, model.informer_factor) == (128, 2, 128)
    assert model.vocabulary == vocabulary


@pytest.mark.parametrize(
    ("task", "lr", "warmup", "batch", "steps"),
    [
        ("listops", 1e-4, 1000, 32, 5_000),
        ("text", 1e-4, 8000, 32, 20_000),
        ("retrieval", 1e-4, 800, 32, 30_000),
        ("image", 1e-4, 175, 256, 35_000),
        ("pathfinder", 1e-4, 312, 256, 62_400),
    ],
)
def test_nystrom(task: str, lr: float, warmup: int, batch: int, steps: int) -> None:
    assert preset("nystrom", task).train == TrainPreset(lr, warmup, batch, steps)


@pytest.mark.parametrize(
    ("task", "sizes", "lr", "warmup", "decay", "batch", "steps", "pool"),
    [
        ("listops", (4, 512, 512, 8, 1024), 0.05, 1000, 0.1, 32, 5_000, "cls"),
        ("text", (4, 256, 256, 4, 1024), 0.05, 8000, 0.1, 32, 20_000, "cls"),
        ("retrieval", (4, 128, 128, 4, 512), 0.05, 8000, 0.1, 32, 5_000, "cls"),
        ("image", (1, 128, 64, 8, 128), 5e-4, 175, 0.0, 256, 35_000, "cls"),
        ("pathfinder", (4, 32, 16, 4, 32), 1e-3, 312, 0.0, 512, 62_400, "mean"),
    ],
)
def test_google(
    task: str, sizes: tuple[int, ...], lr: float, warmup: int, decay: float, batch: int, steps: int, pool: str
) -> None:
    chosen = preset("google", task)
    m, t = chosen.model, chosen.train
    assert (m.layers, m.dim, m.qkv, m.heads, m.mlp) == sizes
    assert (t.lr, t.warmup, t.weight_decay, t.batch, t.steps, m.pool) == (lr, warmup, decay, batch, steps, pool)
    assert t.betas == (0.9, 0.98)
    assert t.schedule == ("rsqrt" if lr == 0.05 else "cosine")
    assert chosen.length == (1000 if task == "text" else None)


def test_a_preset_is_frozen_and_known() -> None:
    with pytest.raises(FrozenInstanceError):
        preset("skyformer", "text").train.lr = 1.0
    with pytest.raises(ValueError, match="one of skyformer, nystrom, google, got 'jax'"):
        preset("jax", "text")


@pytest.mark.parametrize(("warmup", "steps"), [(10, 100), (2, 50), (80, 200)])
def test_one_cycle_is_that_of_pytorch(warmup: int, steps: int) -> None:
    train = TrainPreset(lr=3e-4, warmup=warmup, batch=1, steps=steps)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 3e-4, total_steps=steps, pct_start=warmup / steps, anneal_strategy="linear", cycle_momentum=False
    )
    for step in range(steps):
        assert learning_rate(train, step) == pytest.approx(theirs.get_last_lr()[0], rel=1e-9), step
        optimizer.step()
        theirs.step()


def test_one_cycle_without_warmup_starts_at_its_peak() -> None:
    for warmup in (0, 1):
        train = TrainPreset(lr=1.0, warmup=warmup, batch=1, steps=11)
        rates = [learning_rate(train, step) for step in range(11)]
        assert rates[0] == 1.0
        assert rates[5] == pytest.approx(0.5, rel=1e-4)
    assert learning_rate(TrainPreset(lr=1.0, warmup=1, batch=1, steps=1), 0) == 1.0


def test_other_schedules() -> None:
    rsqrt = TrainPreset(lr=0.05, warmup=100, batch=1, steps=1000, schedule="rsqrt")
    assert learning_rate(rsqrt, 99) == pytest.approx(0.05 / 10), "the peak is lr / sqrt(warmup)"
    assert learning_rate(rsqrt, 49) == pytest.approx(0.05 / 20)
    assert learning_rate(rsqrt, 399) == pytest.approx(0.05 / 20)
    cosine = replace(rsqrt, schedule="cosine")
    assert learning_rate(cosine, 49) == pytest.approx(0.025)
    assert learning_rate(cosine, 100) == pytest.approx(0.05)
    assert learning_rate(cosine, 550) == pytest.approx(0.025)
    with pytest.raises(ValueError, match="schedule must be onecycle"):
        learning_rate(replace(rsqrt, schedule="linear"), 0)


@pytest.mark.parametrize("name", ["skyformer", "google"])
@pytest.mark.parametrize("task", TASKS)
def test_a_configuration_survives_json(name: str, task: str) -> None:
    config = configure(task, "fastmax2", preset=name, steps=7, quirks=Quirks(drop_last=True), length=64)
    assert RunConfig.from_json(config.to_json()) == config
    assert config.differences(config) == []


def test_what_the_user_gives_replaces_the_preset() -> None:
    config = configure("text", "linear", steps=60, batch=4, lr=1.0, dropout=0.5, attention_dropout=0.3)
    assert (config.train.steps, config.train.batch, config.train.lr) == (60, 4, 1.0)
    assert (config.model.dropout, config.model.attention_dropout) == (0.5, 0.3)
    assert config.train.warmup == 6, "a run shorter than its warmup warms up for a tenth"
    assert configure("text", "linear", steps=60, warmup=50).train.warmup == 50
    assert config.eval_every == 3
    assert configure("text", "linear", quirks=Quirks(text_1000=True)).length == 1000
    assert configure("text", "linear", preset="google").length == 1000
    assert configure("text", "linear").length is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "sudoku"}, "task must be one of listops"),
        ({"precision": "fp8"}, "precision must be one of no, bf16, got 'fp8'"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"preset": "none"}, "preset must be one of"),
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"lr": float("nan")}, "lr must be above 0, got nan"),
        ({"warmup": -1}, "warmup must be at least 0, got -1"),
        ({"dropout": -0.1}, "dropout must be at least 0 and below 1, got -0.1"),
        ({"attention_dropout": 1.0}, "attention_dropout must be at least 0 and below 1, got 1.0"),
        ({"seed": -1}, "seed must be at least 0 and below"),
        ({"eval_every": 0}, "eval_every must be at least 1, got 0"),
        ({"eval_examples": 0}, "eval_examples must be at least 1, got 0"),
        ({"scale": "big"}, "scale must be one of paper, sqrt, learned, got 'big'"),
        ({"length": 5}, "length must be from 16 to 4000 for text, got 5"),
        ({"stepz": 5, "layerz": 1}, "unknown settings: layerz, stepz"),
    ],
)
def test_wrong_settings_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        configure(**({"task": "text", "attention": "linear"} | options))
