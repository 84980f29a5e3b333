"""Names on the page explained, and numbers in sentences."""

from fastmax_lab.report.table import times as times

MEANINGS = {
    "softmax": "softmax attention by PyTorch's own kernel, which keeps no N × N matrix",
    "vanilla": "the same numbers by the plain formula, matrix by matrix; also called softmax, plain formula",
    "softmax, standardized": "softmax of queries and keys that are standardized as those of Fastmax are",
    "fastmax1": "Fastmax of order 1, with scale 1/D: a larger one could make weights negative",
    "fastmax2": (
        "Fastmax of order 2, with scale 1/√D, the default of our layers. Scaling and Exactness call the bare function, "
        "whose scale is 1; time and memory do not depend on it"
    ),
    "fastmax2, paper's scale": "Fastmax of order 2 with scale 1, as equation 8 of the paper has it",
    "fastmax2, learned scale": "Fastmax of order 2 with one learned scale per head",
    "fastmax2, as released": "Fastmax of order 2 as in its authors' code: queries and keys are divided by their largest norm",
    "fastmax4": "Fastmax of order 4, with scale 1/√D",
    "…, decay": "with one learned decay per head: ours, not in the paper",
    "window": "softmax over the last 64 tokens in all layers; …, window first: in the first layer alone",
    "…, no conv": "without the convolution over four tokens before each attention",
    "…, near W": "the last W keys weighed by softmax's exponential, the others by the polynomial, normalized together",
    "…, gated far": "with a forget gate whose heads all start with a reach of 4,096 tokens",
    "…, half gated": "with a forget gate in every second head",
    "…, narrow": "with queries and keys of 16 channels beside values of 32",
    "…, gated": "with a forget gate, a decay per token and head: ours, not in the paper",
    "linear, performer, reformer, informer": "the other attentions of the paper's tables, in our code",
    "N, D": "the number of tokens, and the channels of one head",
    "±": (
        "the standard deviation over seeds. Where there is one seed, tables name the standard error of an accuracy on the "
        "test examples"
    ),
    "best by dev": (
        "in each task the Fastmax of the highest accuracy on the dev set; shown is its accuracy on the test set"
    ),
    "the paper's numbers": "measured on RTX A6000 and A5000 GPUs; all others on the machine named at the top",
}
"""The labels on the page."""


def plus_minus(value: float, deviation: float | None, digits: int = 2) -> str:
    return f"{value:.{digits}f}" if deviation is None else f"{value:.{digits}f} ± {deviation:.{digits}f}"


def listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
