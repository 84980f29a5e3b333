"""Wrappers around the two methods of transformers that have no hook: saving a config, and the cache of generate().

`register` installs them. Neither affects models that do not run Fastmax.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    GenerationConfig,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.generation.configuration_utils import GenerationMode

from fastmax.integrations.transformers import persistence
from fastmax.integrations.transformers.cache import FastmaxCache

_INSTALLED = "_fastmax_hook"


def install() -> None:
    """Wrap both methods, once."""
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
