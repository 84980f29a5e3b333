"""Recall from afar: its texts, its recipes, how it lengthens texts, goes on and chooses rates."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from lab.tests.records import record

from fastmax.models import LMConfig
from fastmax_lab.data.files import MissingDataError
from fastmax_lab.experiments import far as far_module
from fastmax_lab.experiments import far_grid, recipes, recipes_language
from fastmax_lab.experiments.far import FarRun, FarTraining, far, texts
from fastmax_lab.experiments.recipes import RECIPES
from fastmax_lab.experiments.texts import load

TINY = FarRun("softmax", pairs=2, length=64, steps=12, tokens=64, names=4, noise=4, width=8)


@pytest.mark.parametrize("distractors", [0, 2])
def test_texts_have_their_answers(distractors: int) -> None:
    run = replace(TINY, distractors=distractors)
    assert run.shortest == (16 if distractors == 0 else 32)
    for length in (run.shortest, 64):
        tokens, answers, distances = texts(run, length, 5, torch.Generator().manual_seed(0))
        for row, right, far_back in zip(tokens.tolist(), answers.tolist(), distances.tolist(), strict=True):
            first = row[: length // 4]
            keys = [i for i, token in enumerate(first) if token < run.names]
            assert len({first[i] for i in keys}) == len(keys) == run.pairs + distractors
            values = {first[i]: first[i + 1] for i in keys}
            assert all(run.names <= value < 2 * run.names for value in values.values())
            assert [token for i, token in enumerate(first) if token < 2 * run.names and i not in keys] == [
                values[first[i]] for i in keys
            ]
            asked = [i for i, answer in enumerate(right) if answer != -100]
            assert len(asked) == length // far_module.QUESTIONS
            assert asked[-1] == length - 1
            assert asked[0] >= length // 4
            assert [right[i] for i in asked] == [values[row[i]] for i in asked]
            assert [row[i - far_back[i]] for i in asked] == [right[i] for i in asked]
            others = [token for i, token in enumerate(row) if i >= length // 4 and i not in asked]
            assert all(2 * run.names <= token < 2 * run.names + run.noise for token in others)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_learns_and_sees_no_later_token(name: str) -> None:
    run = replace(TINY, recipe=name, width=32, steps=2)
    training = FarTraining(run, Path("nowhere"))
    before = [p.detach().clone() for p in training.model.parameters()]
    tokens, answers, _ = texts(run, 64, 2, training.generator)
    training._step(tokens, answers)
    moved = sum(not torch.equal(x, y) for x, y in zip(before, training.model.parameters(), strict=True))
    assert moved > len(before) / 2
    with torch.no_grad():
        whole, part = training.model(tokens), training.model(tokens[:, :40])
    torch.testing.assert_close(whole[:, :40], part, rtol=1e-4, atol=1e-4)
    assert RECIPES[name].state(training.model.config, 4096) > 0


def test_what_is_kept_of_a_text() -> None:
    config = FarRun("").config
    states = {name: recipe.state(recipe.config(config), 4096) for name, recipe in RECIPES.items()}
    conv = 2 * 3 * 64
    assert states["softmax"] == 2 * 2 * 64 * 4096 + conv
    assert states["softmax, no conv"] == 2 * 2 * 64 * 4096
    assert states["window"] == 2 * 2 * 64 * 63 + conv
    assert states["fastmax2"] == states["fastmax2, gated"] == 2 * 2 * 561 * 33 + conv
    assert states["fastmax2, gated, narrow"] == 2 * 2 * 153 * 33 + conv
    assert states["fastmax2, window first"] == 2 * 561 * 33 + 2 * 64 * 63 + conv
    assert states["fastmax2, near 16"] == states["fastmax2"] + 2 * 2 * 64 * 16
    assert states["fastmax4, gated, heads of 16"] == 2 * 4 * 4845 * 17 + conv


def test_parameters_are_about_equal() -> None:
    counts = {name: sum(p.numel() for p in recipes.make(name, 0, FarRun("").config).parameters()) for name in RECIPES}
    assert max(counts.values()) < 1.02 * min(size for name, size in counts.items() if "narrow" not in name)


def test_narrow_models_have_their_channels() -> None:
    for name, (d, value_dim, _) in recipes.NARROW.items():
        layer = recipes.make(name, 0, LMConfig(9, 1, width=256, heads=256 // value_dim)).blocks[0].attention
        assert (layer.qk_head_dim, layer.head_dim) == (d, value_dim)


def test_every_second_head_never_forgets() -> None:
    layer = recipes.HalfGatedAttention(8, 4, batch_first=True, decay="gated")
    decay = layer._log_decay(torch.randn(2, 5, 8))
    assert decay is not None
    assert bool((decay[:, [0, 2]] < 0).all())
    assert bool((decay[:, [1, 3]] == 0).all())


def test_texts_become_longer_when_answers_are_right(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    training = FarTraining(TINY, tmp_path)
    seen: list[int] = []

    def right(tokens: torch.Tensor, _answers: torch.Tensor) -> None:
        seen.append(tokens.shape[1])
        training.now.step += 1
        training.now.accuracy = 1.0 if training.now.step % 2 else 0.5

    monkeypatch.setattr(training, "_step", right)
    found = iter((0.9, 1.0))
    monkeypatch.setattr(far_module, "measured", lambda _model, _run, _length: (next(found), {}))
    training.train(lambda _step, _loss: None)
    assert seen == [16, 32, 32, 64, 64, 64, 64]
    assert training.now.reached == {"16": 0, "32": 1, "64": 3}
    assert training.now.solved


def test_an_interrupted_run_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(far_module, "SAVED_EVERY", 0.0)
    run = replace(TINY, recipe="fastmax2, gated")
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole = far(run, tmp_path / "whole")

    def stop(step: int, _loss: float) -> None:
        if step == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        far(run, tmp_path / "parts", stop)
    steps: list[int] = []
    parts = far(run, tmp_path / "parts", lambda step, _loss: steps.append(step))
    assert steps == [8, 9, 10, 11, 12]
    assert {**parts, "seconds": 0} == {**whole, "seconds": 0}
    assert set(whole["by_length"]) == {"16", "32", "64", "128"}
    assert sum(count for _, count in whole["by_distance"].values()) == far_module.TESTED // far_module.QUESTIONS


def test_the_best_rate_on_short_texts_runs_on_long_ones() -> None:
    first = far_grid.runs("cpu", [])
    assert {run.recipe for run in first} == set(RECIPES)
    assert {run.length for run in first} == {512}
    softmax = [run for run in first if run.recipe == "softmax"]
    assert [run.lr for run in softmax] == list(far_grid.RATES)
    values = ({"solved": True, "steps_done": 2000}, {"solved": True, "steps_done": 500}, {"solved": False})
    found = [
        record(asdict(run), {"accuracy": 0.9, "steps_done": 3000, "length_reached": 512} | value)
        for run, value in zip(softmax, values, strict=True)
    ]
    assert far_grid.rate_of_long(found[:2], "softmax") is None
    then = [run for run in far_grid.runs("cpu", found) if run not in first]
    assert {(run.recipe, run.lr) for run in then} == {("softmax", far_grid.RATES[1])}
    assert [(run.length, run.pairs, run.distractors, run.seed) for run in then] == [
        (4096, 16, 0, 0), (4096, 16, 0, 1), (4096, 16, 0, 2),
    ]  # fmt: skip
    found.append(record(asdict(then[0]), {"solved": True}))
    last = [run for run in far_grid.runs("cpu", found) if run not in first and run not in then]
    assert [(run.length, run.pairs, run.distractors, run.seed) for run in last] == [
        (4096, 4, 0, 0), (4096, 64, 0, 0), (4096, 16, 48, 0), (8192, 16, 0, 0),
    ]  # fmt: skip
    names = [one.name for one in far_grid.items("cpu", found)]
    assert len(set(names)) == len(names)


def test_what_never_came_to_whole_short_texts_has_no_long_ones() -> None:
    first = far_grid.runs("cpu", [])
    values = {"accuracy": 0.1, "solved": False, "steps_done": 3000, "length_reached": 256}
    found = [record(asdict(run), values) for run in first if run.recipe == "window"]
    assert far_grid.runs("cpu", found) == first


def test_recipes_write_language_at_their_best_rate() -> None:
    first = recipes_language.runs("cpu", [])
    small, wide = ([run for run in first if run.width == width] for width in (128, 256))
    assert {(run.attention, run.text, run.tokens) for run in small} == {
        (name, text, tokens) for name in RECIPES for text in ("shakespeare", "wikitext2") for tokens in (512, 2048)
    }
    assert {(run.attention, run.heads) for run in wide} == {
        (name, 256 // value_dim) for name, (_, value_dim, _) in recipes.NARROW.items()
    }
    names = [one.name for one in recipes_language.items("cpu", [])]
    assert len(set(names)) == len(names)
    wanted = [run for run in first if (run.attention, run.text, run.tokens) == ("softmax", "wikitext2", 512)]
    found = [record(asdict(run), {"val_loss": abs(run.lr - 4e-3)}) for run in wanted]
    then = [run for run in recipes_language.runs("cpu", found) if run not in first]
    assert [(run.attention, run.text, run.tokens, run.lr, run.seed) for run in then] == [
        ("softmax", "wikitext2", 512, 4e-3, 1), ("softmax", "wikitext2", 512, 4e-3, 2),
    ]  # fmt: skip


def test_wikitext_is_read_as_bytes_of_one_alphabet(tmp_path: Path) -> None:
    (tmp_path / "wikitext2").mkdir()
    (tmp_path / "wikitext2" / "wiki.train.tokens").write_bytes(b"abba\n")
    (tmp_path / "wiki.valid.tokens").write_bytes(b"cab")
    text = load("wikitext2", tmp_path)
    assert "".join(text.alphabet) == "\nabc"
    assert text.train.tolist() == [1, 2, 2, 1, 0]
    assert text.val.tolist() == [3, 1, 2]
    with pytest.raises(MissingDataError, match=r"lacks wikitext2/wiki\.train\.tokens"):
        load("wikitext2", tmp_path / "nowhere")
