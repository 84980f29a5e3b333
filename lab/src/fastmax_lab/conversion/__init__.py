"""A pretrained softmax model of Hugging Face transformers becomes a Fastmax model, by training (extra "hf")."""

from fastmax_lab.conversion.convert import convert
from fastmax_lab.conversion.recipe import Stage
from fastmax_lab.conversion.report import Conversion

__all__ = ["Conversion", "Stage", "convert"]
