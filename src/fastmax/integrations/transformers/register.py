"""register: the names "fastmax" and "fastmax1" for every model that uses transformers' attention interface."""

from functools import partial

from transformers import AttentionInterface, AttentionMaskInterface
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING, register_quantization_config, register_quantizer

from fastmax.integrations.transformers import persistence
from fastmax.integrations.transformers.attention import attend
from fastmax.integrations.transformers.masks import fastmax_mask

NAMES = {"fastmax": 2, "fastmax1": 1}
"""Each with the order of modules that nothing else was said for."""


def register() -> None:
    """Make "fastmax" (order 2) and "fastmax1" (order 1) known as `attn_implementation`. To call it again does no harm.

    Models that rotate positions into queries and keys get normalize="rms", others the paper's standardization; the scale is
    1 / sqrt(D), 1 / D for odd orders. `configure` sets all this and more, layer by layer.
    """
    for name, order in NAMES.items():
        AttentionInterface.register(name, partial(attend, order))
        AttentionMaskInterface.register(name, fastmax_mask)
    if persistence.METHOD not in AUTO_QUANTIZER_MAPPING:
        register_quantization_config(persistence.METHOD)(persistence.FastmaxConfig)
        register_quantizer(persistence.METHOD)(persistence.FastmaxLoader)
