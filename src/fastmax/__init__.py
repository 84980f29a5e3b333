"""Fastmax: factorizable attention in linear time, exact and drop-in."""

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastmax.api import fastmax_attention, fastmax_varlen_attention
    from fastmax.core import similarity, standardize
    from fastmax.nn import FastmaxAttention, LayerOptions, Replacement, replace_attention, rotate
    from fastmax.reference import attention_matrix, reference_attention
    from fastmax.state import FastmaxState

__version__ = "0.1.0"

__all__ = [
    "FastmaxAttention",
    "FastmaxState",
    "LayerOptions",
    "Replacement",
    "attention_matrix",
    "fastmax_attention",
    "fastmax_varlen_attention",
    "reference_attention",
    "replace_attention",
    "rotate",
    "similarity",
    "standardize",
]


def _load() -> None:
    for home in ("api", "core", "nn", "reference", "state"):
        module = import_module(f"fastmax.{home}")
        globals().update({name: getattr(module, name) for name in __all__ if hasattr(module, name)})


if not TYPE_CHECKING:  # to a type checker, every name would be there

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'fastmax' has no attribute {name!r}")
        _load()
        return globals()[name]


# The command answers --help, --version and wrong arguments without waiting for torch, which it imports when it needs it.
# Everybody else has all of it at once, the registered operators too, which torch.export.load looks for.
# "-m" is what Python calls itself while it looks for the module to run.
if Path((getattr(sys, "argv", None) or [""])[0]).name not in ("fastmax", "fastmax.exe", "-m"):
    _load()
