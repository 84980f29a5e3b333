"""attn_implementation="fastmax": every architecture against dense Fastmax in the same place."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, LlamaConfig

from fastmax import reference_attention
from fastmax.integrations.transformers import configure, parameters_of, verify
from fastmax.integrations.transformers.masks import fastmax_mask
from fastmax.integrations.transformers.modules import is_cross
from tests.integrations.architectures import ARCHITECTURES, Architecture
from tests.integrations.properties import (
    PADDED,
    moved_by_padding,
    oracle_outputs,
    outputs,
    weights_without_gradient,
)
from tests.support import assert_within_budget

BY_NAME = {architecture.model_type: architecture for architecture in ARCHITECTURES}
LLAMA = BY_NAME["llama"]
MISTRAL = Architecture("mistral", rotary=True, window=True, changes={"sliding_window": 4})
TESTED = [
    BY_NAME[name]
    for name in (
        "llama", "gpt2", "gpt_neox", "gemma3_text", "deepseek_v3", "diffllama", "olmoe", "qwen2_moe", "bert", "modernbert",
        "bart", "clip", "vit", "whisper",
    )
]  # fmt: skip
"""All others are in the table that tools/transformers_table.py writes."""


@pytest.mark.parametrize("architecture", TESTED, ids=lambda architecture: architecture.model_type)
def test_it_is_dense_fastmax_in_the_same_place(architecture: Architecture) -> None:
    model = architecture.build("fastmax")
    sides = ("left", "right") if architecture.kind in PADDED else (None,)
    for side in sides:
        inputs = architecture.inputs(side)
        found = verify(model, inputs)
        assert found.ok, found
        assert bool(found.softmax) == architecture.window
        actual, expected = outputs(model, inputs), oracle_outputs(architecture, inputs, torch.float64)
        dense = oracle_outputs(architecture, inputs)
        if side is not None and actual.shape[1] >= inputs["attention_mask"].shape[1]:
            mask = inputs["attention_mask"].bool()
            for x in (actual, expected, dense):
                x[:, : mask.shape[1]][~mask] = 0  # the outputs of padding itself mean nothing
        assert_within_budget(actual, expected, dense)
        if side is not None:
            # experts add in the order of all tokens that chose them, those of padding included
            rounding = 0 if architecture.dtype == torch.float64 else 16 * torch.finfo(torch.float32).eps
            assert moved_by_padding(model, inputs) <= rounding * max(1.0, expected.abs().max().item())
    assert weights_without_gradient(model, architecture.inputs()) == []


def test_the_oracle_would_see_another_attention() -> None:
    """Softmax, the other normalization, another order: all far away."""
    inputs = LLAMA.inputs("left")
    mask = inputs["attention_mask"].bool()
    right = outputs(LLAMA.build("fastmax"), inputs)[mask]
    wrong = [outputs(LLAMA.build(name), inputs)[mask] for name in ("sdpa", "fastmax1")]
    wrong.append(oracle_outputs(Architecture("llama", rotary=False), inputs)[mask])
    for other in wrong:
        assert (right - other).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["llama", "gpt_neox", "gemma3_text"])
def test_shifting_all_positions_changes_nothing(name: str) -> None:
    model = BY_NAME[name].build("fastmax", torch.float32)
    inputs = BY_NAME[name].inputs()
    positions = torch.arange(inputs["input_ids"].shape[1])[None]
    here, there = (outputs(model, {**inputs, "position_ids": positions + shift}) for shift in (0, 20))
    assert (here - there).abs().max() < 1e-4
    configure(model, normalize=True)  # the standardization takes a mean off, which rotations do not leave alone
    here, there = (outputs(model, {**inputs, "position_ids": positions + shift}) for shift in (0, 20))
    assert (here - there).abs().max() > 1e-4


def test_layers_with_a_sliding_window_keep_softmax() -> None:
    inputs = MISTRAL.inputs("left")
    mask = inputs["attention_mask"].bool()
    model = MISTRAL.build("fastmax")
    found = verify(model, inputs)
    assert not found.fastmax
    assert len(found.softmax) == 2
    sdpa = outputs(MISTRAL.build("sdpa"), inputs)
    assert_within_budget(outputs(model, inputs)[mask], sdpa[mask], sdpa[mask])


def test_causality_comes_from_the_argument_the_mask_or_the_module() -> None:
    """CLIP says is_causal=True where its module says False; a later token must move no earlier one."""
    clip = BY_NAME["clip"]
    model = clip.build("fastmax").text_model
    ids = clip.inputs()["input_ids"]
    other = torch.cat((ids[:, :-1], ids[:, -1:] + 1), 1) % 90
    a, b = (outputs(model, {"input_ids": x}) for x in (ids, other))
    assert (a[:, :-1] - b[:, :-1]).abs().max() == 0
    assert (a[:, -1] - b[:, -1]).abs().max() > 1e-6


@pytest.mark.parametrize("name", ["bart", "whisper"])
def test_cross_attention_never_decays(name: str) -> None:
    """Source and target may have other lengths, and where they have not, no source key fades by the target's positions."""
    architecture = BY_NAME[name]
    model = architecture.build("sdpa")
    configure(model, decay="gated")
    gated = {module: parameters_of(module).gate is not None for module in model.modules() if parameters_of(module)}
    cross = [layer.encoder_attn for layer in model.get_decoder().layers]
    assert len(cross) == 2
    assert [module for module, has_gate in gated.items() if not has_gate] == cross
    assert verify(model, architecture.inputs()).ok


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("encoder.layer.0.crossattention.self", True),
        ("text_model.model.image_to_text_projection.x_attn", True),
        ("mask_decoder.transformer.final_attn_token_to_image", True),
        ("decoder.layers.0.text_cross_attn", True),
        ("cross_modal_text_layers.0.attention.self", False),
        ("encoder.layers.0.self_attn", False),
    ],
)
def test_cross_attention_is_known_by_its_name(name: str, expected: bool) -> None:
    """Names of bert, kosmos-2, sam, sam3 and bridgetower."""
    assert is_cross(name, torch.nn.Module()) is expected


def test_fastmax1_has_order_1_and_its_scale() -> None:
    inputs = LLAMA.inputs()
    actual = outputs(LLAMA.build("fastmax1"), inputs)
    model = LLAMA.build("fastmax")
    configure(model, order=1, normalize="rms", scale=1 / 8)
    expected = outputs(model, inputs)
    assert_within_budget(actual, expected, expected)


def explicit(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **_: Any
) -> tuple[Tensor, None]:
    """Causal attention of projected queries and keys by its definition."""
    assert attention_mask is None or attention_mask.numel() == 0
    added = module.fastmax
    q = torch.einsum("hdc,bhnc->bhnd", added.narrow.query, query)
    k = torch.einsum("hdc,bhnc->bhnd", added.narrow.key, key)
    scale = 3**-0.5 if added.head_scale is None else added.head_scale
    o = reference_attention(q, k, value, is_causal=True, normalize="rms", scale=scale, enable_gqa=True)
    return o.transpose(1, 2), None


@pytest.mark.parametrize("learn_scale", [False, True])
def test_narrow_queries_and_keys_are_projected_after_their_rotation(learn_scale: bool) -> None:
    AttentionInterface.register("explicit", explicit)
    AttentionMaskInterface.register("explicit", fastmax_mask)
    model, inputs = LLAMA.build("fastmax"), LLAMA.inputs()
    plain = outputs(model, inputs)
    names = configure(model, qk_head_dim=3, learn_scale=learn_scale)
    for name in names:
        narrow = model.get_submodule(name).fastmax.narrow
        assert (narrow.query.shape, narrow.key.shape) == ((4, 3, 8), (2, 3, 8))
        unit = torch.eye(3, dtype=torch.float64).expand(2, 3, 3)
        torch.testing.assert_close(narrow.key @ narrow.key.mT, unit, rtol=0, atol=1e-5)  # made in fp32
        assert torch.equal(narrow.query, narrow.key.repeat_interleave(2, 0))
        torch.nn.init.normal_(narrow.query)
    found = outputs(model, inputs)
    assert not torch.allclose(found, plain, rtol=0, atol=1e-3)
    model.set_attn_implementation("explicit")
    torch.testing.assert_close(found, outputs(model, inputs))


def test_half_precision_stays_close() -> None:
    inputs = LLAMA.inputs("right")
    mask = inputs["attention_mask"].bool()
    model = LLAMA.build("fastmax", torch.bfloat16)
    oracle = LLAMA.build("fastmax", torch.float64)
    dense = LLAMA.build("fastmax", torch.bfloat16)
    oracle.load_state_dict(model.state_dict())
    configure(dense, backend="chunked")
    found = (outputs(m, inputs)[mask] for m in (model, oracle, dense))
    assert_within_budget(*found)


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_dropout_is_drawn_in_training_alone(name: str) -> None:
    changes: dict[str, Any] = {"attention_dropout": 0.5} if name == "llama" else {"attention_probs_dropout_prob": 0.5}
    changes |= {} if name == "llama" else {"hidden_dropout_prob": 0.0}
    architecture = Architecture(name, BY_NAME[name].kind, BY_NAME[name].rotary, changes=changes)
    model = architecture.build("fastmax")
    inputs = architecture.inputs()
    quiet = outputs(model, inputs)
    assert torch.equal(quiet, outputs(model, inputs))
    model.train()
    first = outputs(model, inputs)
    assert not torch.equal(first, quiet)
    assert torch.equal(first, outputs(model, inputs))  # from the same seed


def test_gradient_checkpointing_gives_the_same_gradients() -> None:
    inputs = LLAMA.inputs("left")
    grads = []
    for checkpointing in (False, True):
        model = LLAMA.build("fastmax").train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        torch.autograd.backward(model(**inputs, use_cache=False).logits.square().sum())
        grads.append({name: weight.grad for name, weight in model.named_parameters()})
    for name, grad in grads[0].items():
        assert_within_budget(grads[1][name], grad, grad)


@pytest.mark.parametrize("padding", [None, "left"])
@pytest.mark.parametrize("name", ["llama", "bert"])
def test_compiles_without_a_break(name: str, padding: str | None) -> None:
    model = BY_NAME[name].build("fastmax")
    inputs = BY_NAME[name].inputs(padding)
    expected = outputs(model, inputs)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    actual = outputs(compiled, {**inputs, **({"use_cache": False} if name == "llama" else {})})
    mask = inputs["attention_mask"].bool() if padding else torch.ones(2, 11, dtype=torch.bool)
    assert_within_budget(actual[mask], expected[mask], expected[mask])


def test_a_model_without_the_interface_cannot_be_configured() -> None:
    from transformers import MambaConfig, MambaForCausalLM

    model = MambaForCausalLM(MambaConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, state_size=4))
    with pytest.raises(ValueError, match="has no module that uses transformers' attention interface"):
        configure(model)


def test_options_that_make_no_sense_are_refused() -> None:
    model = LLAMA.build("sdpa")
    for options, message in (
        ({"order": 7}, "order must be from 1 to 4"),
        ({"normalize": "l2"}, "normalize must be"),
        ({"decay": "fast"}, "decay must be"),
        ({"qk_head_dim": 0}, "qk_head_dim must be a positive number of channels or None, got 0"),
        ({"qk_head_dim": 9}, "qk_head_dim must be at most the 8 channels of model.layers.0.self_attn, got 9"),
        ({"windows": {"*": 0}}, "window must be a positive number"),
        ({"windows": {"*.0.*": 4}, "layers": "*"}, r"layers.0.self_attn is named by both layers and windows"),
        ({"layers": ["model.layers.7"]}, "no attention module is called 'model.layers.7'"),
        ({"windows": {"*.7.*": 4}}, r"no attention module is called '\*.7.\*'"),
    ):
        with pytest.raises(ValueError, match=message):
            configure(model, **options)
    assert isinstance(model.config, LlamaConfig)
    assert model.config._attn_implementation == "sdpa"
    assert not any(parameters_of(module) for module in model.modules())
