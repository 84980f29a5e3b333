"""register: the names "fastmax" and "fastmax1" for every model that uses transformers' attention interface."""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    DynamicCache,
    EncoderDecoderCache,
    GenerationConfig,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.generation.configuration_utils import GenerationMode
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING, register_quantization_config, register_quantizer

from fastmax.integrations.transformers import persistence
from fastmax.integrations.transformers.attention import attend
from fastmax.integrations.transformers.cache import FastmaxCache
from fastmax.integrations.transformers.masks import fastmax_mask

NAMES = {"fastmax": 2, "fastmax1": 1}
"""The order of modules that were not configured, by name."""

_INSTALLED = "_fastmax_hook"


def register() -> None:
    """Register "fastmax" (order 2) and "fastmax1" (order 1) as values of `attn_implementation`. Later calls change nothing.

        >>> register()
        >>> model.set_attn_implementation("fastmax")

    Models that rotate positions into queries and keys get normalize="rms", others the paper's standardization. The scale is
    1 / sqrt(D), 1 / D for odd orders. `configure` sets all this and more, layer by layer.

    Two methods of transformers are wrapped, since they have no hook: configs of Fastmax models are saved with their
    `attn_implementation`, and `generate()` takes a `FastmaxCache` for Fastmax models unless it is given another cache.
    """
    for name, order in NAMES.items():
        AttentionInterface.register(name, partial(attend, order))
        AttentionMaskInterface.register(name, fastmax_mask)
    if persistence.METHOD not in AUTO_QUANTIZER_MAPPING:
        register_quantization_config(persistence.METHOD)(persistence.FastmaxConfig)
        register_quantizer(persistence.METHOD)(persistence.FastmaxLoader)
    _wrap_methods()


def _wrap_methods() -> None:
    """Wrap the two methods of transformers that have no hook, once. Both leave models that do not run Fastmax alone."""
    for kind, name, wrap in (
        (PreTrainedConfig, "save_pretrained", _save),
        (GenerationMixin, "_prepare_cache_for_generation", _prepare_cache),
    ):
        original = getattr(kind, name)
        if not hasattr(original, _INSTALLED):
            wrapped = wrap(original)
            setattr(wrapped, _INSTALLED, True)
            setattr(kind, name, wrapped)


def _save(original: Callable[..., None]) -> Callable[..., None]:
    """Return a `save_pretrained` of configs that writes the entries of a Fastmax model, whether it ever ran or not."""

    @wraps(original)
    def save_pretrained(self: PreTrainedConfig, *args: Any, **options: Any) -> None:
        with persistence.written_entries(self):
            original(self, *args, **options)

    return save_pretrained


def _prepare_cache(original: Callable[..., None]) -> Callable[..., None]:
    """Return a method that makes the DynamicCache that transformers chose by default a FastmaxCache.

    A cache or a `cache_implementation` that the user gave stays. Assisted decoding, prompt lookup and their assistants keep
    the DynamicCache too: they take tokens back, which a state cannot.
    """

    @wraps(original)
    def prepare(
        self: PreTrainedModel,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
        generation_mode: GenerationMode,
        batch_size: int,
        max_cache_length: int,
    ) -> None:
        given = model_kwargs.get("past_key_values")
        original(self, generation_config, model_kwargs, generation_mode, batch_size, max_cache_length)
        made = model_kwargs.get("past_key_values")
        config = self.config.get_text_config(decoder=True)
        if (
            given is not None
            or generation_config.cache_implementation is not None
            or generation_config.is_assistant
            or generation_mode == GenerationMode.ASSISTED_GENERATION
            or not persistence.is_ours(config._attn_implementation)
        ):
            return
        if type(made) is DynamicCache:
            model_kwargs["past_key_values"] = FastmaxCache(config)
        elif type(made) is EncoderDecoderCache and type(made.self_attention_cache) is DynamicCache:
            model_kwargs["past_key_values"] = EncoderDecoderCache(FastmaxCache(config), made.cross_attention_cache)

    return prepare
