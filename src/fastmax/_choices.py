"""The values that options choose from. Importing this module does not import torch."""

MAX_ORDER = 4

DROPOUT_MODES = ("standard", "1d", "quadratic")
"""`fastmax.dropout` tells what each drops."""

DECAYS = ("learned", "gated")
"""Of layers that forget: one per head, or one of every token."""
