"""Attentions to compare with, one file each, one interface: their names and options, without torch.

softmax    PyTorch's fused kernel            vanilla   the same by the plain formula
fastmax1   .. fastmax4: order 1 .. 4         linear    elu + 1
performer  FAVOR+                            reformer  LSH, shared queries and keys
informer   ProbSparse                    released  fastmax2 as in its authors' code
"""

from dataclasses import dataclass

SEVEN = ("softmax", "fastmax1", "fastmax2", "linear", "performer", "reformer", "informer")
"""The attentions of the paper's tables."""

NAMES = (*SEVEN, "vanilla", "fastmax3", "fastmax4", "released")

SCALES = ("paper", "sqrt", "learned")
"""Options of fastmax."""

DECAYS = ("none", "learned", "gated")
"""Options of fastmax and softmax."""

DROPOUT_MODES = ("standard", "1d", "quadratic")
"""Options of fastmax."""


@dataclass(frozen=True)
class BaselineOptions:
    """The options of an attention that a user may choose. Each attention reads those that it has."""

    scale: str = "sqrt"
    decay: str = "none"
    standardized: bool = False
    dropout: float = 0.0
    dropout_mode: str = "quadratic"
    backend: str = "auto"
    performer_features: int = 128
    reformer_rounds: int = 2
    reformer_chunk: int = 64
    informer_factor: float = 5.0
