"""Hybrids: softmax in a window in some layers, Fastmax in the others, configured in one call."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from fastmax.integrations.transformers import attention_modules, configure, parameters_of, verify
from fastmax.integrations.transformers.modules import has_window
from tests.integrations.architectures import ARCHITECTURES, Architecture
from tests.integrations.properties import generated, outputs
from tests.support import assert_within_budget

BY_NAME = {architecture.model_type: architecture for architecture in ARCHITECTURES}
LLAMA = Architecture("llama", rotary=True, changes={"num_hidden_layers": 4})
MISTRAL = Architecture("mistral", rotary=True, window=True, changes={"sliding_window": 4})
OWN_WINDOWS = [BY_NAME[name] for name in ("ministral", "gemma3_text", "olmo3", "cohere2", "modernbert")]


def layer(number: int) -> str:
    return f"model.layers.{number}.self_attn"


def test_one_call_makes_a_hybrid(tmp_path: Path) -> None:
    model = LLAMA.build("sdpa")
    chosen = configure(model, decay="gated", learn_scale=True, windows={"model.layers.[13].*": 3})
    assert chosen == (layer(0), layer(2))
    inputs = LLAMA.inputs("left")
    found = verify(model, inputs)
    assert found.ok
    assert found.fastmax == chosen
    assert found.softmax == {layer(1): "softmax, window", layer(3): "softmax, window"}
    options = [parameters_of(module).options for _, module in attention_modules(model)]
    assert [(x.decay, x.learn_scale, x.window) for x in options] == [("gated", True, None), (None, False, 3)] * 2
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.allclose(outputs(loaded, inputs), outputs(model, inputs), rtol=0, atol=1e-12)
    first, *others = (generated(model, inputs, cache) for cache in ("none", "dynamic", "default"))
    for other in others:
        assert torch.equal(first, other)


def test_layers_and_windows_leave_the_rest_as_it_was() -> None:
    model = LLAMA.build("sdpa")
    configure(model, decay="gated")
    gate = parameters_of(model.model.layers[0].self_attn).gate
    assert configure(model, order=4, layers=layer(1), windows={layer(2): 3}) == (layer(1),)
    options = [parameters_of(module).options for _, module in attention_modules(model)]
    assert [(x.order, x.decay, x.window) for x in options] == [
        (2, "gated", None), (4, None, None), (2, None, 3), (2, "gated", None),
    ]  # fmt: skip
    assert parameters_of(model.model.layers[0].self_attn).gate is gate


def test_a_window_wider_than_the_text_is_softmax() -> None:
    inputs = LLAMA.inputs("left")
    mask = inputs["attention_mask"].bool()
    model = LLAMA.build("sdpa")
    expected = outputs(model, inputs)[mask]
    assert configure(model, windows={"*": 11}) == ()
    assert_within_budget(outputs(model, inputs)[mask], expected, expected)


@pytest.mark.parametrize("architecture", OWN_WINDOWS, ids=lambda architecture: architecture.model_type)
def test_layers_with_a_window_by_their_config_keep_it(architecture: Architecture) -> None:
    """They get no scales and gates, which would never learn: no parameter is without a gradient."""
    model = architecture.build("sdpa")
    chosen = configure(model, learn_scale=True, decay="gated")
    inputs = architecture.inputs()
    found = verify(model, inputs)
    assert found.ok
    assert found.fastmax == chosen
    assert found.softmax
    assert set(found.softmax.values()) == {"softmax, sliding window"}
    torch.autograd.backward(model(**inputs)[0].square().sum())
    added = {name: weight for name, weight in model.named_parameters() if ".fastmax." in name}
    assert added
    assert [name for name, weight in added.items() if weight.grad is None] == []
    with pytest.raises(ValueError, match="has a sliding window by the model's config"):
        configure(model, layers=[next(iter(found.softmax))])


def test_a_model_of_windows_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="all attention layers of MistralForCausalLM have a sliding window"):
        configure(MISTRAL.build("sdpa"))


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, MISTRAL], ids=lambda architecture: architecture.model_type)
def test_windows_are_known_without_a_run(architecture: Architecture) -> None:
    model = architecture.build("fastmax")
    found = verify(model, architecture.inputs())
    expected = {name: name in found.softmax for name in (*found.fastmax, *found.softmax)}
    assert {name: has_window(module) for name, module in attention_modules(model)} == expected
