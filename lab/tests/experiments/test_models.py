"""The small models of experiments: every attention, from a seed alone; their data, maps and how local they are."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.tests.records import record

from fastmax import attention_matrix
from fastmax_lab.experiments import images, language, maps, order_one, texts
from fastmax_lab.experiments.items import Workspace
from fastmax_lab.experiments.language_model import LanguageRun, fit, held_out, loss_of, spread, windows
from fastmax_lab.experiments.language_model import language as measure_language
from fastmax_lab.experiments.maps import locality
from fastmax_lab.experiments.order_one import OrderOneRun
from fastmax_lab.experiments.recall import RecallRun, examples, recall
from fastmax_lab.experiments.recorded import LayerMaps, recording, vision_maps
from fastmax_lab.experiments.texts import Text
from fastmax_lab.experiments.training import ATTENTIONS, train
from fastmax_lab.experiments.vision import MODELS, TOKENS, VisionConfig, VisionModel

TINY = {"names": 8, "pairs": 3, "steps": 100, "batch": 2, "width": 8, "heads": 2}


RUN = LanguageRun("", tokens=32, steps=4, batch=2, layers=1, width=16, heads=2, memory=(1.0, 2.0), validation=256)


def letters() -> Text:
    tokens = torch.arange(4000).remainder(7).to(torch.uint8)
    return Text(tokens, tokens, tuple("abcdefg"))


def never(_step: int, _loss: float) -> bool:
    return False


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_language_from_a_seed_alone(attention: str) -> None:
    run = replace(RUN, attention=attention)
    first, second = (measure_language(run, letters(), never) for _ in range(2))
    assert first["val_loss"] == second["val_loss"]
    assert first["bits_per_character"] == pytest.approx(first["val_loss"] / 0.6931, rel=1e-3)
    assert (first["reach"] is None) == (ATTENTIONS[attention]["decay"] is None)


def test_training_records_every_tenth_gradient_norm_before_it_is_clipped() -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    slope = torch.tensor([3.0, 4.0])
    result = train(
        model, [{"params": [model.weight]}], lambda: (model.weight * slope).sum(), lr=0.1, steps=12, warmup=1
    )
    assert result["gradient_norms"] == [[1, 5.0], [11, 5.0]]


def test_every_window_of_the_validation_text_counts_alike() -> None:
    """33 of them: the last part of 32 has one."""
    text = texts.load("listops", Path("nowhere"))
    run = replace(RUN, attention="softmax", validation=33 * RUN.tokens)
    model, _ = fit(run, text, never)
    held = windows(text.val, spread(text.val, run), run.tokens)
    assert len(held) == 33
    with torch.no_grad():
        losses = [loss_of(model(one[None, :-1]), one[None]).item() for one in held]
    assert held_out(run, model, text)["val_loss"] == pytest.approx(sum(losses) / 33, rel=1e-5)


@pytest.mark.parametrize("attention", ["softmax", "linear", "performer", "fastmax1", "fastmax2", "fastmax2, gated"])
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


def test_the_best_rate_of_each_attention_runs_with_more_seeds() -> None:
    first = language.runs("cpu", [])
    softmax = [run for run in first if (run.attention, run.tokens, run.steps) == ("softmax", 128, 600)]
    assert [run.lr for run in softmax] == list(language.RATES)
    found = [record(dict(run.__dict__), {"val_loss": abs(run.lr - 4e-3)}) for run in softmax]
    then = language.runs("cpu", found)
    assert [(r.attention, r.tokens, r.lr, r.seed) for r in then if r.seed] == [
        ("softmax", 128, 4e-3, 1), ("softmax", 128, 4e-3, 2),
    ]  # fmt: skip


def test_a_rate_beyond_the_best_is_tried_before_more_seeds() -> None:
    gated = [run for run in language.runs("cpu", []) if run.attention == "fastmax2, gated" and run.steps == 6000]
    found = [record(dict(run.__dict__), {"val_loss": -run.lr}) for run in gated]
    then = [run for run in language.runs("cpu", found) if run.attention == "fastmax2, gated" and run.steps == 6000]
    assert [(run.lr, run.seed) for run in then] == [*((lr, 0) for lr in language.RATES), (16e-3, 0)]
    found += [record(dict(then[-1].__dict__), {"val_loss": -16e-3})]
    then = [run for run in language.runs("cpu", found) if run.attention == "fastmax2, gated" and run.steps == 6000]
    assert [(run.lr, run.seed) for run in then[-2:]] == [(16e-3, 1), (16e-3, 2)]


@pytest.mark.parametrize("data", ["shapes", "listops"])
def test_order_one_has_negative_denominators_at_scale_1_only(data: str) -> None:
    sizes: dict[str, Any] = {"seed": 0, "steps": 10, "batch": 2, "lr": 1e-3, "width": 16, "heads": 2, "tokens": 16}
    space = Workspace(Path("nowhere"), Path("nowhere"))
    found = {scale: order_one.measure(OrderOneRun(data, scale, **sizes), space) for scale in ("1", "1/D")}
    assert len(found["1"]["looks"]) == 11
    assert found["1"]["looks"][0]["negative"] > 0.05
    assert all(look["negative"] == 0 and look["smallest"] > 0 for look in found["1/D"]["looks"])


def test_denominators_are_means_over_visible_keys() -> None:
    q, k = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [-3.0]])
    assert order_one.denominators(q, k, 1.0, is_causal=False).tolist() == [0.0, -1.0]
    assert order_one.denominators(q, k, 1.0, is_causal=True).tolist() == [2.0, -1.0]


def test_generated_text_has_its_answers() -> None:
    text = texts.load("listops", Path("nowhere"))
    line = "".join(text.alphabet[t] for t in text.train[:200].tolist()).split("\n")[0]
    assert line.startswith("[")
    assert line[-2] == "="
    assert line[-1].isdigit()
    assert torch.equal(text.train, texts.load("listops", Path("nowhere")).train)


def test_generated_images_can_be_told_apart() -> None:
    """The nearest mean of a class is right for most test images, though each is shifted and noisy."""
    shapes = images.load("shapes", Path("nowhere"))
    training, test = shapes.train.flatten(1).double(), shapes.test.flatten(1).double()
    means = torch.stack([training[shapes.train_labels == c].mean(0) for c in range(10)])
    guesses = torch.cdist(test, means).argmin(1)
    assert (guesses == shapes.test_labels).double().mean() > 0.5
    assert torch.equal(shapes.train, images.load("shapes", Path("nowhere")).train)


@pytest.mark.parametrize("name", MODELS)
def test_maps_of_images_are_those_of_the_attention(name: str) -> None:
    model = VisionModel(name, VisionConfig(layers=2, dim=16, heads=2, mlp=16))
    maps = vision_maps(model, torch.randint(256, (3, 28, 28), dtype=torch.uint8))
    assert [tuple(one.shape) for one in maps] == [(3, 2, TOKENS, TOKENS)] * 2
    for one in maps:
        torch.testing.assert_close(one.sum(-1), torch.ones(3, 2, TOKENS))
        assert (one >= -1e-6).all()


def test_maps_are_of_both_scales() -> None:
    """1 in the paper, else 1 / sqrt(D); maps of a larger one are less even."""
    found = {}
    for name in ("fastmax2", "fastmax2, paper's scale"):
        torch.manual_seed(0)
        model = VisionModel(name, VisionConfig(layers=1, dim=32, heads=2, mlp=16))
        found[name] = vision_maps(model, torch.randint(256, (3, 28, 28), dtype=torch.uint8))[0].amax(-1).mean()
    assert found["fastmax2, paper's scale"] > 1.5 * found["fastmax2"]
    assert set(maps.ATTENTIONS) <= set(MODELS)
    assert set(maps.ATTENTIONS) <= set(ATTENTIONS)


def test_maps_of_text_are_those_of_the_layer() -> None:
    """The identity as values gives the matrix that `attention_matrix` gives by its definition."""
    model, _ = fit(replace(RUN, attention="fastmax2, gated"), letters(), never, recording)
    tokens = windows(letters().val, torch.tensor([0, 5]), 16)[:, :-1]
    with torch.no_grad(), LayerMaps(model) as maps:
        model(tokens)
        layer = model.blocks[0].attention
        x = model.blocks[0].attention_norm(model.tokens(tokens))
        q, k, _ = layer._projected(x, x, x)
        expected = attention_matrix(
            layer._rotated(q, None), layer._rotated(k, None), is_causal=True, scale=layer.scale, normalize=False,
            log_decay=layer.gate(x),
        )  # fmt: skip
    (found,) = maps.found
    torch.testing.assert_close(found, expected)
    model(tokens)
    assert len(maps.found) == 1, "afterwards nothing is recorded"


def test_locality_of_maps_that_are_known() -> None:
    tokens = 8
    even = torch.full((2, 1, tokens, tokens), 1 / tokens)
    (uniform,) = locality(even, is_causal=False)
    assert uniform == pytest.approx({"keys": 1.0, "distance": 1.0, "largest": 1 / tokens})
    (diagonal,) = locality(torch.eye(tokens).expand(2, 1, -1, -1), is_causal=True)
    assert diagonal["distance"] == 0
    assert diagonal["largest"] == 1
    assert diagonal["keys"] == pytest.approx(sum(1 / n for n in range(2, tokens + 1)) / (tokens - 1))
    (causal,) = locality(torch.ones(1, 1, tokens, tokens).tril(), is_causal=True)
    assert causal["keys"] == pytest.approx(1.0)
    assert causal["distance"] == pytest.approx(1.0)
