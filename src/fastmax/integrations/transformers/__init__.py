"""Fastmax in the models of Hugging Face transformers (extra "hf"): the swap, constant-memory generation, persistence.

    from fastmax.integrations.transformers import configure, register

    register()                                              # makes "fastmax" (order 2) and "fastmax1" available
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="fastmax")
    model.generate(**inputs)                                # with a FastmaxCache, in constant memory

    configure(model, order=2, learn_scale=True, decay="gated")              # options and parameters, layer by layer
    configure(model, order=4, layers="model.layers.0.*")                    # other options in some layers
    configure(model, windows={"model.layers.*[13579].*": 64})               # softmax over 64 tokens in every second layer
    model.save_pretrained(path)                                             # all of it comes back with from_pretrained

`attention_modules(model)` yields the name and the module of every attention. After `configure` each has a child
`module.fastmax`, an `AttentionParameters`. The attention function reads it at every call; a model that was not configured
has no such child and runs with the defaults.
"""

from fastmax.integrations.transformers.cache import FastmaxCache
from fastmax.integrations.transformers.configure import configure
from fastmax.integrations.transformers.modules import attention_modules
from fastmax.integrations.transformers.options import AttentionOptions, AttentionParameters, parameters_of
from fastmax.integrations.transformers.refusals import RefusedError
from fastmax.integrations.transformers.register import register
from fastmax.integrations.transformers.verify import Verification, verify

__all__ = [
    "AttentionOptions",
    "AttentionParameters",
    "FastmaxCache",
    "RefusedError",
    "Verification",
    "attention_modules",
    "configure",
    "parameters_of",
    "register",
    "verify",
]
