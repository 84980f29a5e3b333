"""Fastmax as layers: in the place of nn.MultiheadAttention, alone or throughout a model."""

from fastmax.nn.attention import FastmaxAttention
from fastmax.nn.options import LayerOptions
from fastmax.nn.replace import Replacement, replace_attention
from fastmax.nn.rotary import rotate

__all__ = ["FastmaxAttention", "LayerOptions", "Replacement", "replace_attention", "rotate"]
