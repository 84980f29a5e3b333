"""Fastmax: factorizable attention in linear time, exact and drop-in."""

from fastmax.api import fastmax_attention, fastmax_varlen_attention
from fastmax.core import similarity, standardize
from fastmax.costs import Cost, cost
from fastmax.nn import FastmaxAttention, ForgetGate, LayerOptions, Replacement, replace_attention, rotate
from fastmax.reference import attention_matrix, reference_attention
from fastmax.state import FastmaxState

__version__ = "0.1.0"

__all__ = [
    "Cost",
    "FastmaxAttention",
    "FastmaxState",
    "ForgetGate",
    "LayerOptions",
    "Replacement",
    "attention_matrix",
    "cost",
    "fastmax_attention",
    "fastmax_varlen_attention",
    "reference_attention",
    "replace_attention",
    "rotate",
    "similarity",
    "standardize",
]
