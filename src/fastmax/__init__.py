"""Fastmax: factorizable attention in linear time, exact and drop-in."""

from fastmax.core import similarity, standardize
from fastmax.functional import fastmax_attention, fastmax_varlen_attention
from fastmax.reference import attention_matrix, reference_attention

__all__ = [
    "attention_matrix",
    "fastmax_attention",
    "fastmax_varlen_attention",
    "reference_attention",
    "similarity",
    "standardize",
]

__version__ = "0.1.0"
