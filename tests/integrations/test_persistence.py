"""Saved models come back exactly; if fastmax is missing, they do not come back as softmax."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, BitsAndBytesConfig

from fastmax.integrations.transformers import AttentionOptions, configure, parameters_of, verify
from tests.integrations.architectures import ARCHITECTURES
from tests.integrations.properties import outputs

BY_NAME = {architecture.model_type: architecture for architecture in ARCHITECTURES}
LLAMA = BY_NAME["llama"]
FIRST, SECOND = "model.layers.0.self_attn", "model.layers.1.self_attn"


def configured(**more: Any) -> Any:
    """Other options in each layer, and parameters that have moved away from where they start."""
    model = LLAMA.build("sdpa")
    assert configure(model, order=2, learn_scale=True, decay="gated", memory=(1.0, 4.0), layers=[FIRST]) == (FIRST,)
    assert configure(
        model, order=3, scale=0.01, normalize=True, decay="learned", qk_head_dim=3, layers=[SECOND], **more
    ) == (SECOND,)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".fastmax." in name:
                weight.add_(torch.randn_like(weight) / 8)
    return model


def test_the_round_trip_is_exact(tmp_path: Path) -> None:
    model = configured()
    model.save_pretrained(tmp_path / "one")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "one")
    assert loaded.config._attn_implementation == "fastmax"
    assert parameters_of(loaded.model.layers[0].self_attn).options == AttentionOptions(
        2, "rms", learn_scale=True, decay="gated", memory=(1.0, 4.0)
    )
    assert parameters_of(loaded.model.layers[1].self_attn).options == AttentionOptions(
        3, True, 0.01, decay="learned", qk_head_dim=3
    )
    before, after = model.state_dict(), loaded.state_dict()
    assert {name for name in before if ".fastmax." in name} == {
        f"{FIRST}.fastmax.head_scale", f"{FIRST}.fastmax.gate.bias", f"{FIRST}.fastmax.gate.weight",
        f"{SECOND}.fastmax.gate.bias", f"{SECOND}.fastmax.narrow.query", f"{SECOND}.fastmax.narrow.key",
    }  # fmt: skip
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    inputs = LLAMA.inputs("left")
    assert verify(loaded, inputs).ok
    # weights and rounding are the same, addresses are not: libraries may add in another order
    assert torch.allclose(outputs(model, inputs), outputs(loaded, inputs), rtol=0, atol=1e-12)
    # to be loaded is not to be changed: it is an ordinary model, and saving it again says the same
    assert not loaded.is_quantized
    loaded.float().save_pretrained(tmp_path / "two")
    entries = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("one", "two")]
    for entry in entries:
        entry.pop("dtype")
    assert entries[0] == entries[1]


def test_configuring_again_keeps_what_stays() -> None:
    model = configured()
    scale = parameters_of(model.model.layers[0].self_attn).head_scale
    configure(model, order=4, layers=[SECOND])
    assert parameters_of(model.model.layers[0].self_attn).head_scale is scale
    assert parameters_of(model.model.layers[1].self_attn).options == AttentionOptions(4, "rms")


@pytest.mark.parametrize("name", ["fastmax", "fastmax1"])
def test_a_plain_swap_is_saved_before_it_ever_ran(name: str, tmp_path: Path) -> None:
    model = LLAMA.build(name)
    model.save_pretrained(tmp_path / "one")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "one")
    assert loaded.config._attn_implementation == name
    loaded.save_pretrained(tmp_path / "two")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "two")
    assert again.config._attn_implementation == name
    assert torch.allclose(outputs(again, LLAMA.inputs()), outputs(model, LLAMA.inputs()), rtol=0, atol=1e-12)
    loaded.config.save_pretrained(tmp_path / "config")
    config = AutoConfig.from_pretrained(tmp_path / "config")
    assert AutoModelForCausalLM.from_config(config).config._attn_implementation == name


def test_towers_of_a_plain_swap_are_saved_before_they_ever_ran(tmp_path: Path) -> None:
    clip = BY_NAME["clip"]
    clip.build("fastmax").save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    assert len(verify(loaded, clip.inputs()).fastmax) == 4


def test_a_model_is_saved_with_the_attention_that_it_has_then(tmp_path: Path) -> None:
    """A switch to softmax and back changes what is saved in between, and loses no option."""
    model = configured()
    kept = model.config.quantization_config
    for implementation, found in (("sdpa", "sdpa"), ("fastmax", "fastmax")):
        model.set_attn_implementation(implementation)
        model.save_pretrained(tmp_path / implementation)
        entry = json.loads((tmp_path / implementation / "config.json").read_text())
        assert entry.get("attn_implementation", "sdpa") == found
        assert ("quantization_config" in entry) == (implementation == "fastmax")
        assert model.config.quantization_config is kept
        assert not hasattr(model.config, "attn_implementation")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "fastmax")
    assert torch.allclose(outputs(model, LLAMA.inputs()), outputs(loaded, LLAMA.inputs()), rtol=0, atol=1e-12)
    softmax = AutoModelForCausalLM.from_pretrained(tmp_path / "sdpa")
    assert softmax.config._attn_implementation == "sdpa"


def test_softmax_models_are_saved_as_ever(tmp_path: Path) -> None:
    LLAMA.build("sdpa").save_pretrained(tmp_path)
    entry = json.loads((tmp_path / "config.json").read_text())
    assert not {"attn_implementation", "quantization_config"} & set(entry)


def test_towers_are_remembered_too(tmp_path: Path) -> None:
    clip = BY_NAME["clip"]
    model = clip.build("sdpa")
    configure(model, learn_scale=True)
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    assert len(verify(loaded, clip.inputs()).fastmax) == 4
    assert torch.allclose(outputs(model, clip.inputs()), outputs(loaded, clip.inputs()), rtol=0, atol=1e-12)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from fastmax.integrations.transformers import register

    register()
    path = tmp_path_factory.mktemp("saved")
    configured().save_pretrained(path / "configured")
    LLAMA.build("fastmax").save_pretrained(path / "plain")
    BY_NAME["clip"].build("fastmax").save_pretrained(path / "towers")
    return path


@pytest.mark.slow
def test_without_fastmax_it_does_not_load(saved: Path) -> None:
    """The process has not registered fastmax, as on a machine without it."""
    script = """
import sys
from transformers import AutoModel
for path in sys.argv[1:]:
    try:
        AutoModel.from_pretrained(path)
    except ValueError as error:
        print("refused:", str(error)[:60])
assert "fastmax" not in sys.modules
"""
    command = [sys.executable, "-c", script, *(str(saved / name) for name in ("configured", "plain", "towers"))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.count('refused: Specified `attn_implementation="fastmax"` is not supported') == 3, done


def test_softmax_can_be_asked_for(saved: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(saved / "configured", attn_implementation="sdpa")
    assert model.config._attn_implementation == "sdpa"
    assert not hasattr(model.config, "quantization_config")
    assert parameters_of(model.model.layers[0].self_attn) is None
    expected = LLAMA.build("sdpa")
    assert torch.allclose(outputs(model, LLAMA.inputs()), outputs(expected, LLAMA.inputs()), rtol=0, atol=1e-12)


def test_new_modules_for_a_configured_model_are_refused(saved: Path) -> None:
    config = AutoModelForCausalLM.from_pretrained(saved / "configured").config
    model = AutoModelForCausalLM.from_config(config, attn_implementation="fastmax")
    with pytest.raises(ValueError, match="its modules are new: load the model with from_pretrained"):
        model(**LLAMA.inputs())


def test_entries_of_other_versions_are_refused(saved: Path, tmp_path: Path) -> None:
    entry = json.loads((saved / "configured" / "config.json").read_text())
    for change, message in (({"version": 2}, "saved for version 2"), ({}, "has no options kernel")):
        wrong = json.loads(json.dumps(entry))
        wrong["quantization_config"].update(change)
        if not change:
            wrong["quantization_config"]["layers"][0]["options"]["kernel"] = "exp"
        (tmp_path / "config.json").write_text(json.dumps(wrong))
        (tmp_path / "model.safetensors").write_bytes((saved / "configured" / "model.safetensors").read_bytes())
        with pytest.raises(ValueError, match=message):
            AutoModelForCausalLM.from_pretrained(tmp_path)


def test_a_quantized_model_has_no_place_for_options(tmp_path: Path) -> None:
    model = LLAMA.build("sdpa")
    model.config.quantization_config = BitsAndBytesConfig(load_in_8bit=True)
    with pytest.raises(ValueError, match="a quantized model cannot be configured"):
        configure(model)
    swapped = LLAMA.build("fastmax")  # yet it can be swapped
    swapped.config.quantization_config = BitsAndBytesConfig(load_in_8bit=True)
    swapped.config.save_pretrained(tmp_path)
    entry = json.loads((tmp_path / "config.json").read_text())
    assert entry["attn_implementation"] == "fastmax"
    assert entry["quantization_config"]["quant_method"] == "bitsandbytes"
