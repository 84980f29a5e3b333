"""Numbers in sentences."""

from fastmax.report.table import times as times

NAMES = {
    "exactness": "Exactness and gradients",
    "scaling": "Scaling",
    "maps": "Attention maps",
    "dropout": "Dropout",
    "language": "Scale, order and decay in language",
    "lra-settings": "Scale, order and decay in encoders",
    "recall": "Recall",
    "lra-speed": "Long Range Arena, speed and memory",
    "lra": "Long Range Arena, accuracy",
}


def plus_minus(value: float, deviation: float | None, digits: int = 2) -> str:
    return f"{value:.{digits}f}" if deviation is None else f"{value:.{digits}f} ± {deviation:.{digits}f}"


def listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
