"""The refusals: requests of models that Fastmax cannot fulfil, each with its name and the remedy."""

from typing import Any, NoReturn

from torch import nn

_WITHOUT = {
    "softcap": "caps the logits of softmax, of which Fastmax has none",
    "position_bias": "adds a bias that varies with the query to the logits of softmax, of which Fastmax has none",
    "s_aux": "adds attention sinks to the denominator of softmax",
}
SOFTMAX = 'load this model with attn_implementation="sdpa" or "eager"'


class RefusedError(ValueError):
    """An error for a request of a model that Fastmax attention cannot honour.

    >>> issubclass(RefusedError, ValueError)
    True
    """


def refuse(what: str, way_out: str) -> NoReturn:
    raise RefusedError(f"Fastmax attention cannot honour {what}: {way_out}")


def arguments(module: nn.Module, more: dict[str, Any]) -> None:
    """Check the arguments that a model gives its attention function beside query, key, value and mask."""
    for name, why in _WITHOUT.items():
        if more.get(name) is not None:
            refuse(f"{name} ({type(module).__name__} {why})", SOFTMAX)
    if more.get("output_attentions"):
        refuse(
            "output_attentions (no attention matrix is formed)",
            "leave it out; fastmax.attention_matrix computes chosen rows of the matrix from queries and keys",
        )
    if more.get("cache") is not None:
        refuse("a paged cache (continuous batching)", "use generate() with a FastmaxCache")


def mask_shape(shape: tuple[int, ...], dtype: object) -> NoReturn:
    refuse(
        f"an attention mask of shape {shape} and {dtype}",
        "pass one of shape (batch, tokens), 1 where a token counts: one that varies with the query is no sum over keys",
    )


def overlay() -> NoReturn:
    refuse(
        "a mask with an overlay (or_mask_function, and_mask_function, blocks of tokens that see one another)",
        f"it varies with the query beyond causality; {SOFTMAX}",
    )


def chunked() -> NoReturn:
    refuse("chunked attention masks (attention_chunk_size)", SOFTMAX)


def static_cache() -> NoReturn:
    refuse(
        "a StaticCache, whose keys include room that is not filled yet",
        "use FastmaxCache(model.config), whose size is constant too, or a DynamicCache",
    )


def packed() -> NoReturn:
    refuse(
        "packed position_ids without the boundaries of the sequences",
        "pass cu_seq_lens_q and cu_seq_lens_k too, as DataCollatorWithFlattening(return_flash_attn_kwargs=True) does, or an "
        "attention_mask if the positions are meant to jump within one sequence",
    )
