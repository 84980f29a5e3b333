"""Fastmax as layers: instead of nn.MultiheadAttention, alone or throughout a model."""

from fastmax.nn.attention import FastmaxAttention
from fastmax.nn.gate import ForgetGate
from fastmax.nn.options import LayerOptions
from fastmax.nn.replace import Replacement, replace_attention
from fastmax.nn.rotary import rotate

__all__ = ["FastmaxAttention", "ForgetGate", "LayerOptions", "Replacement", "replace_attention", "rotate"]
