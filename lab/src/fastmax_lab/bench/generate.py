"""`fastmax-lab bench generate`: a token of generation, FastmaxCache against keys and values (extra "hf")."""

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from fastmax.integrations.transformers import FastmaxCache, register
from fastmax.nn.options import layer_scale
from fastmax.state import FastmaxState
from fastmax_lab._progress import Progress
from fastmax_lab.bench.measure import interleave, seconds
from fastmax_lab.bench.memory import current_peak, reset_peak
from fastmax_lab.measurements import Recorder, slug

LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 4, 8, 4, 64, 1000
LAYER_COUNTS = (1, LAYERS, 16)
"""Layers of the models whose growth is compared: the common part is that of generate(), the rest that of a layer."""
CONTEXTS = [1 << 10, 1 << 12, 1 << 14, 1 << 16]
CHUNK = 1 << 10
"""Tokens that come to a state at once before generation."""
GROWTH = "growth"
TOKENS = 16
"""Generated tokens, where memory is measured."""


def run(record: Recorder, quick: bool) -> None:
    """Time a token at every context, all in turns; then measure the memory of generating, each model in its own process."""
    contexts = CONTEXTS[:2] if quick else CONTEXTS
    model_of = {"layers": LAYERS, "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM}
    contestants: dict[tuple[int, str], Callable[[], object]] = {}
    held: dict[tuple[int, str], int] = {}  # bytes of caches before they are timed: that of softmax grows by every step
    with Progress(len(contexts) + 2 + len(LAYER_COUNTS)) as bar, torch.inference_mode():
        for context in contexts:
            bar.step(f"preparing {context:,} tokens")
            for name in ("fastmax", "softmax"):
                model = _model(name, LAYERS)
                cache = _empty(name, model)
                _fill(cache, context, LAYERS)
                held[context, name] = _nbytes(cache)
                contestants[context, name] = _step(model, cache, context)
        bar.step("all contexts in turns")
        timings: dict[Any, Any] = {}
        for name in ("fastmax", "softmax"):  # not one another: copies of half a gigabyte leave no cache warm
            own = {key: call for key, call in contestants.items() if key[1] == name}
            timings |= interleave(own, rounds=5 if quick else 20, least_seconds=0.1)
        bar.step("memory, softmax")
        memory = {"softmax": _measure_memory("softmax", contexts, LAYERS)}
        grown: dict[str, int] = {}
        for layers in LAYER_COUNTS:
            bar.step(f"memory, {layers} layers")
            found = _measure_memory("fastmax", contexts, layers)
            grown[str(layers)] = found[str(contexts[-1])] - found[str(contexts[0])]
            if layers == LAYERS:
                memory["fastmax"] = found
    for context in contexts:
        times = {name: t for (at, name), t in timings.items() if at == context}
        values: dict[str, Any] = {"seconds": seconds(times)}
        values["cache_bytes"] = {name: held[context, name] for name in times}
        values["resident_bytes"] = {name: memory[name][str(context)] for name in times}
        record.add(slug("context", context), {"context": context} | model_of, values)
    record.add(GROWTH, model_of | {"layers": list(LAYER_COUNTS)}, {"growth_by_layers": grown})


def _model(name: str, layers: int) -> LlamaForCausalLM:
    register()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=HEADS * HEAD_DIM, intermediate_size=2 * HEADS * HEAD_DIM, num_hidden_layers=layers,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, max_position_embeddings=2 * CONTEXTS[-1],
    )  # fmt: skip
    implementation = {"fastmax": "fastmax", "softmax": "sdpa"}[name]
    model = LlamaForCausalLM._from_config(config, attn_implementation=implementation)  # type: ignore[no-untyped-call]
    return model.eval()  # type: ignore[no-any-return]


def _step(model: LlamaForCausalLM, cache: Any, context: int) -> Callable[[], object]:
    token, position = torch.tensor([[1]]), torch.tensor([[context]])
    return lambda: model(token, past_key_values=cache, position_ids=position)


def _empty(name: str, model: LlamaForCausalLM) -> Any:
    """Return the cache of that name, ready for keys."""
    if name == "softmax":
        return DynamicCache()
    cache: Any = FastmaxCache(model.config)
    for layer in cache.layers:
        scale = layer_scale(2, HEAD_DIM)
        layer.state = FastmaxState.empty(1, KV_HEADS, HEAD_DIM, order=2, scale=scale, normalize="rms")
        layer.start(layer.state.device)
    return cache


def _fill(cache: Any, context: int, layers: int) -> None:
    """Fill with random keys and values up to that many tokens: time and memory of a step do not depend on them."""
    while cache.get_seq_length() < context:
        rest = context - cache.get_seq_length()
        count = rest if isinstance(cache, DynamicCache) else min(CHUNK, rest)  # it is copied whenever it grows
        for index in range(layers):
            key, value = (torch.randn(1, KV_HEADS, count, HEAD_DIM) for _ in range(2))
            if isinstance(cache, DynamicCache):
                cache.update(key, value, index)
            else:
                cache.layers[index].state.update(key, value)
                cache.layers[index].seen += count


def _nbytes(cache: Any) -> int:
    return (
        cache.nbytes if isinstance(cache, FastmaxCache) else sum(x.keys.nbytes + x.values.nbytes for x in cache.layers)
    )


def _measure_memory(name: str, contexts: list[int], layers: int) -> dict[str, int]:
    what = json.dumps({"name": name, "contexts": contexts, "layers": layers})
    command = [sys.executable, "-m", "fastmax_lab.bench.generate", what]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"measuring the memory of {name} failed:\n{done.stderr}")
    found: dict[str, int] = json.loads(done.stdout)
    return found


def _generate(name: str, contexts: list[int], layers: int) -> dict[int, int]:
    """Return resident bytes at the peak of generating some tokens, at every context."""
    torch.set_num_threads(1)
    model: Any = _model(name, layers)

    def generate(cache: Any, context: int) -> int:
        _fill(cache, context - 1, layers)
        _give_back()  # what filling has left in the heap is not generation's
        reset_peak()
        ids = torch.randint(VOCABULARY, (1, context))
        model.generate(ids, past_key_values=cache, max_new_tokens=TOKENS, do_sample=False, eos_token_id=None)
        return current_peak()

    with torch.inference_mode():
        for _ in range(2):  # libraries load and pools grow at the first calls
            generate(_empty(name, model), 8 * CHUNK)
        cache = _empty(name, model)
        for context in (CHUNK // 4, CHUNK // 2):
            generate(cache, context)
        return {context: generate(cache, context) for context in contexts}


def _give_back() -> None:
    """Return freed memory to the system, if the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


if __name__ == "__main__":
    print(json.dumps(_generate(**json.loads(sys.argv[1]))))
