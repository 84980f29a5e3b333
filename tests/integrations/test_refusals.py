"""Refusals of what Fastmax cannot honour: by name, with the way out."""

from typing import Any

import pytest
import torch
from transformers.masking_utils import create_causal_mask

from fastmax.integrations.transformers import FastmaxCache, RefusedError, configure, verify
from tests.integrations.architectures import ARCHITECTURES, REFUSED, SOME_LAYERS, WITHOUT, Architecture
from tests.integrations.properties import generated

LLAMA = next(architecture for architecture in ARCHITECTURES if architecture.model_type == "llama")

BY_NAME = {architecture.model_type: architecture for architecture in (*REFUSED, *SOME_LAYERS, *WITHOUT)}
ASKED = {
    "gemma2": "softcap",
    "gpt_oss": "s_aux",
    "t5": "position_bias",
    "llama4_text": "chunked attention masks",
    "swin": r"an attention mask of shape \(1, 2, 4, 4\)",
}


@pytest.mark.parametrize("name", ASKED)
def test_by_name(name: str) -> None:
    model = BY_NAME[name].build("fastmax")
    inputs = BY_NAME[name].inputs()
    with pytest.raises(
        RefusedError, match=f"cannot honour {ASKED[name]}.*(attn_implementation=.sdpa|pass one of shape)"
    ):
        model(**inputs)
    found = verify(model, inputs)
    assert not found.ok
    assert len(found.refused) == 1
    assert found.unreached
    assert ("the mask: " in str(found)) == (name == "llama4_text")


@pytest.fixture(scope="module")
def llama() -> Any:
    return LLAMA.build("fastmax")


def test_masks_that_vary_with_the_query(llama: Any) -> None:
    inputs = LLAMA.inputs()
    for dtype in (torch.bool, torch.float64):
        with pytest.raises(RefusedError, match=r"an attention mask of shape \(2, 1, 11, 11\)"):
            llama(**inputs, attention_mask=torch.ones(2, 1, 11, 11, dtype=dtype))
    embeddings = torch.zeros(2, 11, 32)
    for name in ("or_mask_function", "and_mask_function"):
        with pytest.raises(RefusedError, match="a mask with an overlay"):
            create_causal_mask(llama.config, embeddings, None, None, **{name: lambda *at: at[-1] == 0})
    with pytest.raises(RefusedError, match="a mask with an overlay"):
        create_causal_mask(
            llama.config, embeddings, None, None, block_sequence_ids=torch.zeros(2, 11, dtype=torch.int64)
        )
    with pytest.raises(RefusedError, match=r"shape \(2, 11, 1\)"):
        create_causal_mask(llama.config, embeddings, torch.ones(2, 11, 1), None)


def test_attention_matrices(llama: Any) -> None:
    with pytest.raises(ValueError, match="output_attentions"):
        llama(**LLAMA.inputs(), output_attentions=True)


def test_other_ways_to_decode(llama: Any) -> None:
    inputs = LLAMA.inputs()
    with pytest.raises(RefusedError, match=r"a StaticCache.*use FastmaxCache"):
        generated(llama, inputs, "default", cache_implementation="static")
    one = {"input_ids": inputs["input_ids"][:1]}
    other = LLAMA.build("fastmax")
    torch.nn.init.normal_(other.lm_head.weight)  # it proposes what the model itself would not say
    for way in ({"prompt_lookup_num_tokens": 2}, {"assistant_model": other}):
        with pytest.raises(ValueError, match="assisted decoding and prompt lookup need a DynamicCache"):
            generated(llama, one, "fastmax", **way)
        # by default they get a cache that can be cut
        assert torch.equal(generated(llama, one, "default", **way), generated(llama, one, "none"))
    cache = FastmaxCache(llama.config)
    with torch.no_grad():
        llama(**one, past_key_values=cache)
    cache.crop(0)
    with pytest.raises(ValueError, match="prompt lookup need a DynamicCache"):
        cache.crop(-1)


def test_packed_rows_need_their_boundaries(llama: Any) -> None:
    ids = LLAMA.inputs()["input_ids"][:1]
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6]])
    with pytest.raises(RefusedError, match=r"packed position_ids.*cu_seq_lens_q"):
        llama(ids, position_ids=positions, use_cache=False)


def test_more_queries_than_keys_are_no_causal_attention(llama: Any) -> None:
    from fastmax.integrations.transformers.attention import attend

    q, k = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 3, 8)
    with pytest.raises(ValueError, match="needs a key for every query, got 5 and 3"):
        attend(2, llama.model.layers[0].self_attn, q, k, k, None)
    with pytest.raises(RefusedError, match="a paged cache"):
        attend(2, llama.model.layers[0].self_attn, k, k, k, None, cache=object())


@pytest.mark.parametrize(("name", "modules"), [("mpnet", 2), ("mamba", 0), ("codegen", 2), ("bloom", 2)])
def test_models_that_ignore_the_name_are_reported(name: str, modules: int) -> None:
    """Two of them would fail in a run, by the shape of a mask that they do not expect."""
    found = verify(BY_NAME[name].build("fastmax"), BY_NAME[name].inputs("left"))
    assert not found.ok
    assert len(found.ignored) == modules
    assert "0 layers ran Fastmax" in str(found)
    assert ("does not use transformers' attention interface" in str(found)) == (modules > 0)


def test_leftover_multihead_attention_is_told() -> None:
    siglip = next(a for a in ARCHITECTURES if a.model_type == "siglip")
    model = siglip.build("fastmax")
    found = verify(model, siglip.inputs())
    assert found.multihead == ("vision_model.head.attention",)
    assert not found.ok
    assert len(found.fastmax) == 4
    assert "fastmax.replace_attention" in str(found)


def test_layers_of_other_kinds_beside_it() -> None:
    lfm2 = BY_NAME["lfm2"]
    found = verify(lfm2.build("fastmax"), lfm2.inputs())
    assert found.ok
    assert len(found.fastmax) == 1


def test_windows_are_reported() -> None:
    model = LLAMA.build("fastmax")
    configure(model, windows={"model.layers.1.*": 3})
    found = verify(model.train(), LLAMA.inputs())
    assert found.ok
    assert model.training
    assert found.softmax == {"model.layers.1.self_attn": "softmax, window"}
    assert "model.layers.1.self_attn: softmax, window" in str(found)


def test_heads_that_the_config_does_not_have() -> None:
    from fastmax.integrations.transformers.modules import heads_of

    with pytest.raises(ValueError, match="the number of heads of Module is not in"):
        heads_of(torch.nn.Module())
    module: Any = torch.nn.Module()
    module.num_heads = 4
    with pytest.raises(ValueError, match="the width of the heads"):
        heads_of(module)
    assert isinstance(LLAMA, Architecture)
