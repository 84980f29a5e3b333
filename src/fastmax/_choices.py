"""The values that options choose from. Importing this module does not import torch."""

MAX_ORDER = 4

DROPOUT_MODES = ("standard", "1d", "quadratic")
"""The modes of `fastmax.dropout`."""

DECAYS = ("learned", "gated")
"""The decays of layers: one per head, or one per head and token."""
