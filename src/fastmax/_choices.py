"""What options choose from, without torch: the command offers it at once, and checks what is given."""

MAX_ORDER = 4

DROPOUT_MODES = ("standard", "1d", "quadratic")
"""`fastmax.dropout` tells what each drops."""

DECAYS = ("learned", "gated")
"""Of layers that forget: one per head, or one of every token."""
