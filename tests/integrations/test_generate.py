"""generate(): equal tokens with FastmaxCache, the default, with a DynamicCache and with none; saving, moving, refusals."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, GenerationConfig, PreTrainedModel

from fastmax import _tensor_file
from fastmax.integrations.transformers import FastmaxCache, configure
from fastmax.integrations.transformers.cache_layer import FastmaxLayer
from tests.integrations.architectures import ARCHITECTURES, SOME_LAYERS, Architecture
from tests.integrations.properties import generated, outputs
from tests.support import assert_within_budget

BY_NAME = {architecture.model_type: architecture for architecture in ARCHITECTURES}
MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beam": {"num_beams": 4},
    "sampling": {"do_sample": True, "top_k": 0, "num_return_sequences": 2},
}


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return BY_NAME["llama"].build("fastmax")


MISTRAL = Architecture("mistral", rotary=True, window=True, changes={"sliding_window": 4})


@pytest.mark.parametrize(
    "architecture",
    [*(BY_NAME[name] for name in ("llama", "gpt2", "qwen3", "gpt_neox", "gemma3_text", "olmo2")), MISTRAL],
    ids=lambda architecture: architecture.model_type,
)
def test_every_cache_gives_the_same_tokens(architecture: Architecture) -> None:
    model = architecture.build("fastmax")
    inputs = architecture.inputs("left")
    for options in MODES.values():
        first, *others = (
            generated(model, inputs, cache, **options) for cache in ("none", "dynamic", "fastmax", "default")
        )
        assert first[:, -8:].unique().numel() >= 6  # something is going on
        for other in others:
            assert torch.equal(first, other), options
    alone = {"input_ids": inputs["input_ids"][:1, 3:]}  # what stands to the left of the padded row changes nothing
    assert torch.equal(generated(model, alone, "fastmax")[0], generated(model, inputs, "fastmax")[0, 3:])


def cache_of(model: Any, inputs: dict[str, Tensor], **options: Any) -> Any:
    """Return the cache that generate() used."""
    done = model.generate(**inputs, max_new_tokens=2, return_dict_in_generate=True, do_sample=False, **options)
    return done.past_key_values


@pytest.mark.parametrize("name", ["llama", "gemma3_text"])
@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"generation_config": GenerationConfig(pad_token_id=0)}])
def test_generate_takes_a_fastmax_cache_by_itself(name: str, options: dict[str, Any]) -> None:
    model = BY_NAME[name].build("fastmax")
    cache = cache_of(model, BY_NAME[name].inputs("left"), **options)
    assert isinstance(cache, FastmaxCache)
    kinds = [type(layer) for layer in cache.layers]
    assert kinds == [type(layer) for layer in FastmaxCache(model.config).layers]
    model.set_attn_implementation("sdpa")
    assert type(cache_of(model, BY_NAME[name].inputs("left"), **options)) is DynamicCache


def test_what_the_user_says_of_caches_wins(llama: Any) -> None:
    inputs = BY_NAME["llama"].inputs()
    assert type(cache_of(llama, inputs, cache_implementation="dynamic")) is DynamicCache
    chosen = GenerationConfig(cache_implementation="dynamic", pad_token_id=0)
    assert type(cache_of(llama, inputs, generation_config=chosen)) is DynamicCache
    for cache in (DynamicCache(config=llama.config), FastmaxCache()):
        assert cache_of(llama, inputs, past_key_values=cache) is cache
    assert cache_of(llama, inputs, use_cache=False) is None
    assert type(cache_of(BY_NAME["llama"].build("sdpa"), inputs)) is DynamicCache


@pytest.mark.parametrize(
    "options",
    [
        {"order": 4, "decay": "gated", "learn_scale": True, "memory": (1.0, 3.0), "layers": "model.layers.0.*"},
        {"order": 4, "decay": "learned", "layers": "model.layers.0.*"},
        {"windows": {"model.layers.0.*": 3}},
        {"decay": "gated", "windows": {"model.layers.1.*": 3}},
        {"decay": "gated", "qk_head_dim": 4},
    ],
)
def test_what_is_configured_is_generated_with(options: dict[str, Any]) -> None:
    model = BY_NAME["llama"].build("fastmax")
    plain = generated(model, BY_NAME["llama"].inputs("left"), "none")
    configure(model, **options)
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if type(module).__name__ == "ForgetGate" and weight is not None:
            torch.nn.init.normal_(weight)
    inputs = BY_NAME["llama"].inputs("left")
    first, *others = (
        generated(model, inputs, cache, num_beams=2) for cache in ("none", "dynamic", "fastmax", "default")
    )
    assert not torch.equal(first, plain)
    for other in others:
        assert torch.equal(first, other)


@pytest.mark.parametrize("make", [FastmaxCache, DynamicCache])
@pytest.mark.parametrize("options", [{}, {"decay": "learned"}, {"windows": {"*": 3}}, {"qk_head_dim": 3}])
def test_pieces_of_a_text_are_the_text(make: Any, options: dict[str, Any]) -> None:
    """Chunked prefill: a chunk of queries sees the cache, and of its own keys those up to each query."""
    model = BY_NAME["llama"].build("fastmax")
    if options:
        configure(model, **options)
    inputs = BY_NAME["llama"].inputs("left")
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    whole = outputs(model, inputs)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    whole = outputs(model, {**inputs, "position_ids": positions})
    cache, parts = make(config=model.config), []
    for start, stop in ((0, 5), (5, 6), (6, 11)):
        piece = {
            "input_ids": ids[:, start:stop],
            "attention_mask": mask[:, :stop],
            "position_ids": positions[:, start:stop],
        }
        parts.append(outputs(model, {**piece, "past_key_values": cache}))
    counted = mask.bool()
    assert_within_budget(torch.cat(parts, 1)[counted], whole[counted], whole[counted])


def test_prefill_in_chunks_by_generate(llama: PreTrainedModel) -> None:
    inputs = BY_NAME["llama"].inputs("left")
    assert torch.equal(generated(llama, inputs, "fastmax", prefill_chunk_size=4), generated(llama, inputs, "none"))


def test_a_conversation_goes_on_from_its_cache(llama: Any) -> None:
    ids = BY_NAME["llama"].inputs()["input_ids"][:1]
    cache = FastmaxCache(llama.config)
    options = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
    first = llama.generate(ids, past_key_values=cache, **options)
    more = torch.cat((first, ids[:, :5]), 1)
    assert cache.get_seq_length() == first.shape[1] - 1  # the last token has not been through the model yet
    second = llama.generate(more, past_key_values=cache, **options)
    assert torch.equal(second, llama.generate(more, use_cache=False, **options))


@pytest.mark.parametrize("name", ["llama", "gemma3_text"])
@pytest.mark.parametrize("options", [{}, {"learn_scale": True}, {"windows": {"*": 3}}])
def test_the_state_of_a_prompt_is_saved_and_goes_on(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    model: Any = BY_NAME[name].build("fastmax")
    if options:
        configure(model, **options)
    ids = BY_NAME[name].inputs()["input_ids"]
    prompt = FastmaxCache(model.config)
    with torch.no_grad():
        model(ids[:, :6], past_key_values=prompt)
    prompt.save(tmp_path / "prompt.safetensors")
    loaded = FastmaxCache.load(tmp_path / "prompt.safetensors")
    assert loaded.get_seq_length() == 6
    assert loaded.nbytes == prompt.nbytes > 0
    expected = generated(model, {"input_ids": ids}, "none")
    for cache in (copy.deepcopy(prompt), loaded, prompt):  # a copy leaves the prompt's own alone
        actual = model.generate(ids, past_key_values=cache, max_new_tokens=8, do_sample=False, eos_token_id=None)
        assert torch.equal(actual, expected)


def test_a_file_of_something_else_is_refused(tmp_path: Path, llama: Any) -> None:
    cache = FastmaxCache(llama.config)
    with torch.no_grad():
        llama(BY_NAME["llama"].inputs()["input_ids"], past_key_values=cache)
    state = cache.layers[0].state
    state.save(tmp_path / "state.safetensors")
    with pytest.raises(ValueError, match="does not hold a FastmaxCache of version 1"):
        FastmaxCache.load(tmp_path / "state.safetensors")
    for layers in ("[{}]", "[1]", "{", '[{"kind": "state", "seen": 1, "options": {}}]'):
        metadata = {"format": "fastmax.cache", "version": "1", "layers": layers}
        _tensor_file.write(tmp_path / "changed.safetensors", {"x": torch.zeros(1)}, metadata)
        with pytest.raises(ValueError, match=r"does not hold a whole FastmaxCache|a state has the entries"):
            FastmaxCache.load(tmp_path / "changed.safetensors")
    cache.save(tmp_path / "whole.safetensors")
    (tmp_path / "half.safetensors").write_bytes((tmp_path / "whole.safetensors").read_bytes()[:-7])
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        FastmaxCache.load(tmp_path / "half.safetensors")


@pytest.mark.parametrize("beams", [1, 2])
def test_encoder_and_decoder(beams: int) -> None:
    """Self attention under a state, cross attention under a cache of its own."""
    bart = BY_NAME["bart"]
    model: Any = bart.build("fastmax")
    inputs = {name: x for name, x in bart.inputs("right").items() if name != "decoder_input_ids"}
    options = {
        "num_beams": beams,
        "max_new_tokens": 6,
        "do_sample": False,
        "eos_token_id": None,
        "forced_eos_token_id": None,
    }
    cache = EncoderDecoderCache(FastmaxCache(), DynamicCache(config=model.config))
    actual = model.generate(**inputs, past_key_values=cache, **options)
    assert torch.equal(actual, model.generate(**inputs, use_cache=False, **options))
    default = model.generate(**inputs, return_dict_in_generate=True, **options)
    assert torch.equal(default.sequences, actual)
    assert isinstance(default.past_key_values.self_attention_cache, FastmaxCache)
    assert type(default.past_key_values.cross_attention_cache) is DynamicCache
    with pytest.raises(ValueError, match="give cross attention a separate DynamicCache"):
        model.generate(**inputs, past_key_values=EncoderDecoderCache(FastmaxCache(), FastmaxCache()), **options)


def test_a_cache_does_not_grow() -> None:
    llama = BY_NAME["llama"]
    model: Any = llama.build("fastmax")
    cache = FastmaxCache(model.config)
    sizes = []
    with torch.no_grad():
        for _ in range(8):
            model(torch.randint(3, 99, (1, 150)), past_key_values=cache, position_ids=torch.arange(150)[None] % 60)
            sizes.append(sum(_size(layer.state.state_dict()) for layer in cache.layers))
    assert cache.get_seq_length() == 1200
    assert sizes[-1] <= cache.nbytes + 100
    assert max(sizes[2:]) <= cache.nbytes + 100
    cache.reset()
    assert cache.get_seq_length() == cache.nbytes == 0


def _size(state: dict[str, Any]) -> int:
    return sum(x.nbytes for x in state.values() if isinstance(x, Tensor))


@pytest.mark.parametrize("name", ["deepseek_v3", "diffllama"])
@pytest.mark.parametrize("mode", ["greedy", "beam"])
def test_a_model_that_changes_what_it_cached_keeps_all_keys(name: str, mode: str, tmp_path: Path) -> None:
    """DeepSeek caches latents, DiffLlama splits the values: right tokens, and a warning that the cache grows."""
    model: Any = BY_NAME[name].build("fastmax")
    inputs = BY_NAME[name].inputs("left")
    expected = generated(model, inputs, "none", **MODES[mode])
    assert torch.equal(generated(model, inputs, "dynamic", **MODES[mode]), expected)
    for cache in ("fastmax", "default"):
        with pytest.warns(UserWarning, match="attends with other keys or values than those that it caches"):
            actual = generated(model, inputs, cache, **MODES[mode])
        assert torch.equal(actual, expected)
    prompt = FastmaxCache(model.config)
    ids = inputs["input_ids"]
    with torch.no_grad():
        model(ids[:, :6], past_key_values=prompt)
    with pytest.warns(UserWarning, match="grows as a DynamicCache does"):
        prompt.save(tmp_path / "prompt.safetensors")
    loaded = FastmaxCache.load(tmp_path / "prompt.safetensors")
    assert loaded.get_seq_length() == 6
    alone = generated(model, {"input_ids": ids}, "none")
    continued = model.generate(ids, past_key_values=loaded, max_new_tokens=8, do_sample=False, eos_token_id=None)
    assert torch.equal(continued, alone)


def test_the_tokens_of_a_state_come_all_as_they_were_cached() -> None:
    cache = FastmaxCache()
    key = torch.randn(1, 2, 3, 8)

    def update() -> Any:
        return cache.update(key, key, 0)

    layer = FastmaxLayer.of(*update())
    layer.attend(key, *layer._pending, None, None, {}, {"order": 2, "scale": 1.0, "normalize": True})
    new_key, new_value = update()
    with pytest.raises(RuntimeError, match="but not at its first tokens"):
        FastmaxLayer.of(new_key, new_value.clone())
    with pytest.raises(RuntimeError, match="but not at its first tokens"):
        update()


def test_the_same_keys_come_once(llama: Any) -> None:
    cache = FastmaxCache(llama.config)
    key = torch.randn(1, 2, 3, 8)
    cached = cache.update(key, key, 0)
    FastmaxLayer.of(*cached).take()
    with pytest.raises(RuntimeError, match="attention was called twice with the same cached keys"):
        FastmaxLayer.of(*cached)


OTHER_LAYERS = [architecture for architecture in SOME_LAYERS if architecture.model_type in ("lfm2", "qwen3_next")]


@pytest.mark.parametrize("architecture", OTHER_LAYERS, ids=lambda architecture: architecture.model_type)
def test_layers_of_other_kinds_have_their_own_caches(architecture: Architecture, tmp_path: Path) -> None:
    model = architecture.build("fastmax")
    inputs = architecture.inputs("left")
    cache = FastmaxCache(model.config)
    assert sum(isinstance(layer, FastmaxLayer) for layer in cache.layers) == 1
    for options in ({}, {"num_beams": 2}):
        first, *others = (
            generated(model, inputs, name, **options) for name in ("none", "dynamic", "fastmax", "default")
        )
        for other in others:
            assert torch.equal(first, other)
    with torch.no_grad():
        model(inputs["input_ids"], past_key_values=cache)
    assert cache.nbytes > 0
    with pytest.raises(ValueError, match="layers of type LinearAttentionLayer cannot be saved"):
        cache.save(tmp_path / "prompt.safetensors")


def test_states_move_between_devices(llama: Any) -> None:
    cache = FastmaxCache(llama.config)
    with torch.no_grad():
        llama(BY_NAME["llama"].inputs()["input_ids"], past_key_values=cache)
    layer = cache.layers[0]
    layer.offload()
    assert layer.state.device == torch.device("cpu")
    layer.device = torch.device("meta")
    layer.prefetch()
    assert layer.state.device == torch.device("meta")
