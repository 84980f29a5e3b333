"""register: the names "fastmax" and "fastmax1" for every model that uses transformers' attention interface."""

from functools import partial

from transformers import AttentionInterface, AttentionMaskInterface
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING, register_quantization_config, register_quantizer

from fastmax.integrations.transformers import hooks, persistence
from fastmax.integrations.transformers.attention import attend
from fastmax.integrations.transformers.masks import fastmax_mask

NAMES = {"fastmax": 2, "fastmax1": 1}
"""The order of modules that were not configured, by name."""


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
    hooks.install()
