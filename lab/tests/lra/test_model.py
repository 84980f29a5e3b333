"""The model: its parts against formulas, masks and pooling, pairs, historical quirks, and that it learns by heart."""

from dataclasses import replace
from math import log
from pathlib import Path

import numpy as np
import pytest
import torch
from lab.tests.lra import made_up
from torch.nn.functional import cross_entropy

from fastmax_lab.baselines import NAMES, SEVEN
from fastmax_lab.lra.batches import take
from fastmax_lab.lra.config import ModelPreset
from fastmax_lab.lra.model import Classifier, attention_options, classifier, mean_pool, sinusoidal
from fastmax_lab.lra.presets import NAMES as PRESETS
from fastmax_lab.lra.presets import preset
from fastmax_lab.lra.quirks import Quirks, flags
from fastmax_lab.lra.run import configure
from fastmax_lab.lra.tasks import Task
from fastmax_lab.lra.train import make_optimizer

SMALL = ModelPreset(layers=1, dim=16, qkv=16, heads=2, mlp=32, dropout=0.0, attention_dropout=0.0)


def made(name: str = "fastmax2", task: str = "text", model: ModelPreset = SMALL, **options: object) -> Classifier:
    torch.manual_seed(0)
    return classifier(made_up.task(task), model, name, **options).double().eval()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("task", made_up.TASKS)
@pytest.mark.parametrize("pool", ["mean", "cls"])
def test_padding_changes_no_logit(name: str, task: str, pool: str) -> None:
    """A batch cut to its longest sequence, padded to the full length, and each example alone."""
    small = replace(SMALL, pool=pool, informer_factor=2.0)
    model = made(name, task, small, options=replace(attention_options(small), reformer_chunk=8))
    split = made_up.load(task, "train", Path(), limit=5)
    rows = np.arange(5)
    short, full = take(split, rows), take(split, rows, trim=False)
    logits = model(short.tokens, short.lengths)
    assert logits.shape == (5, made_up.TASKS[task].classes)
    torch.testing.assert_close(model(full.tokens, full.lengths), logits)
    one = take(split, rows[2:3])
    torch.testing.assert_close(model(one.tokens, one.lengths), logits[2:3])


def test_tokens_beyond_the_length_are_not_seen() -> None:
    model = made()
    tokens = torch.randint(1, 257, (3, 48))
    lengths = torch.tensor([48, 20, 1])
    expected = model(tokens, lengths)
    tokens[1, 20:], tokens[2, 1:] = 7, 9
    torch.testing.assert_close(model(tokens, lengths), expected)
    tokens[1, 19] += 1
    assert not torch.allclose(model(tokens, lengths)[1], expected[1])


def test_pairs_are_compared() -> None:
    """The head sees [x, y, x y, x - y] of the two pooled sequences."""
    model = made(task="retrieval")
    tokens = torch.randint(1, 257, (2, 2, 48))
    x, y = (model.encoder(tokens[:, i], None) for i in range(2))
    torch.testing.assert_close(model(tokens), model.head(torch.cat((x, y, x * y, x - y), -1)))


def test_positions_matter() -> None:
    for positions in ("learned", "sinusoidal"):
        model = made(model=replace(SMALL, positions=positions))
        tokens = torch.arange(1, 49)[None]
        assert not torch.allclose(model(tokens), model(tokens.flip(1)))
    with pytest.raises(ValueError, match="positions learned or sinusoidal, got mean, none"):
        made(model=replace(SMALL, positions="none"))
    with pytest.raises(ValueError, match="divisible by heads, got 16 and 3"):
        made(model=replace(SMALL, heads=3))


def test_sinusoidal() -> None:
    table = sinusoidal(9, 6)
    assert table.shape == (9, 6)
    for p, i in ((0, 0), (4, 1), (8, 2)):
        angle = torch.tensor(p * np.exp(-log(10000) * i / 2))
        torch.testing.assert_close(table[p, [i, i + 3]].double(), torch.stack((angle.sin(), angle.cos())))


def test_mean_pool() -> None:
    x = torch.tensor([[[1.0], [3.0], [100.0]]])
    mask = torch.tensor([[True, True, False]])
    assert mean_pool(x, mask).item() == 2.0
    assert mean_pool(x, None).item() == pytest.approx(104 / 3)
    assert mean_pool(x, mask, over_all=True).item() == pytest.approx(4 / 3)
    assert mean_pool(x, torch.zeros_like(mask)).item() == 0.0


def test_quirks() -> None:
    """Black pixels vanish and means are over the full length only when asked for."""
    tokens = torch.randint(0, 4, (2, 48))
    black = made(task="image", quirks=Quirks(zero_is_padding=True))
    brighter = tokens.clone()
    assert not torch.allclose(black(tokens), made(task="image")(tokens))
    seen = black.encoder._mask(brighter, None)
    assert seen is not None
    assert torch.equal(seen, tokens != 0)
    full = made(quirks=Quirks(full_length_mean=True))
    lengths = torch.tensor([48, 10])
    logits, correct = full(tokens, lengths), made()(tokens, lengths)
    torch.testing.assert_close(logits[0], correct[0])
    assert not torch.allclose(logits[1], correct[1])
    assert Quirks.named(["all"]) == Quirks(**{name.replace("-", "_"): True for name in flags()})
    assert Quirks.named(["drop-last"]) == Quirks(drop_last=True)
    with pytest.raises(ValueError, match=r"historical flags are all, zero-is-padding, .*; got slow"):
        Quirks.named(["slow"])


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("task", made_up.TASKS)
def test_every_preset_makes_a_model(name: str, task: str) -> None:
    chosen = preset(name, task)
    shape = made_up.task(task)
    for attention in ("softmax", "reformer"):
        model = classifier(shape, chosen.model, attention)
        assert len(model.encoder.blocks) == chosen.model.layers
        assert (model.encoder.cls is not None) == (chosen.model.pool == "cls")
        tokens = torch.ones((2, 2, 48) if shape.pair else (2, 48), dtype=torch.long)
        assert model(tokens).shape == (2, shape.classes)


def test_shared_keys_need_no_projection() -> None:
    name = "encoder.blocks.0.attention.project.weight"
    assert made("reformer").state_dict()[name].shape == (2 * 16, 16)
    assert made("softmax").state_dict()[name].shape == (3 * 16, 16)


MEMORIZED = ModelPreset(
    layers=1,
    dim=32,
    qkv=32,
    heads=2,
    mlp=64,
    dropout=0.0,
    attention_dropout=0.0,
    performer_features=32,
    informer_factor=5.0,
)


@pytest.mark.parametrize("name", SEVEN)
@pytest.mark.parametrize("task", made_up.TASKS)
def test_it_learns_32_examples_by_heart(name: str, task: str) -> None:
    """Loss below 0.1; labels are random, so there is no rule to find."""
    torch.manual_seed(0)
    shape: Task = made_up.task(task)
    options = replace(attention_options(MEMORIZED), reformer_chunk=8)
    model = classifier(shape, MEMORIZED, name, options=options)
    batch = take(made_up.load(task, "train", Path(), limit=32), np.arange(32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0)
    for _ in range(400):
        loss = cross_entropy(model(batch.tokens, batch.lengths), batch.labels)
        if loss < 0.05:
            break
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        logits = model(batch.tokens, batch.lengths)
    assert cross_entropy(logits, batch.labels) < 0.1


@pytest.mark.parametrize("decay", ["learned", "gated"])
def test_a_model_that_forgets_learns_its_decays(decay: str) -> None:
    config = configure("listops", "fastmax2", decay=decay, length=32, dropout=0.0, attention_dropout=0.0)
    model = config.make_model()
    tokens = torch.randint(1, 16, (3, 32))
    model(tokens, torch.tensor([32, 20, 7])).sum().backward()
    gates = {name: p for name, p in model.named_parameters() if ".gate." in name}
    assert len(gates) == config.model.layers * (2 if decay == "gated" else 1)
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in gates.values())
    groups = make_optimizer(model, config).param_groups
    assert {id(p) for p in groups[1]["params"]} == {id(p) for p in gates.values()}
