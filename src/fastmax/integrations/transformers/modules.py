"""The modules of a model that go through transformers' attention interface, and their static properties."""

import inspect
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

from torch import nn

CROSS = (
    "encoder_attn", "encoder_attention", "crossattention", "cross_attention", "cross_attn", "attn_token_to_image", ".x_attn",
)  # fmt: skip
"""Parts of the names that transformers gives to cross attention inside its layers."""


class Heads(NamedTuple):
    """Numbers of heads of an attention module, and their width."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int


def _names_in_forward(kind: type[nn.Module]) -> tuple[str, ...]:
    """Return the names of globals, attributes and keyword arguments in the code of its `forward`."""
    return _names(kind.forward)


@cache
def _names(function: Callable[..., Any]) -> tuple[str, ...]:
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return ()
    keywords = [name for constant in code.co_consts if isinstance(constant, tuple) for name in constant]
    return (*code.co_names, *(name for name in keywords if isinstance(name, str)))


def attention_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the name and the module of every module whose `forward` looks its attention function up.

    >>> next(attention_modules(model))[0]
    'model.layers.0.self_attn'
    """
    for name, module in model.named_modules():
        if "ALL_ATTENTION_FUNCTIONS" in _names_in_forward(type(module)):
            yield name, module


def is_rotary(kind: type[nn.Module]) -> bool:
    """Return True if rotary positions are applied before the attention, by a function that `forward` calls."""
    return any(name.startswith("apply_") and "rotary" in name for name in _names_in_forward(kind))


def is_cross(name: str, module: nn.Module) -> bool:
    """Return True if the keys of an attention module are those of another sequence, as its names show."""
    return any(part in f".{name}" for part in CROSS) or "cross" in type(module).__name__.lower()


def has_window(module: nn.Module) -> bool:
    """Return True if the config gives this attention module a sliding window."""
    config, index = getattr(module, "config", None), getattr(module, "layer_idx", None)
    types = getattr(config, "layer_types", None)
    if types is not None and isinstance(index, int):
        return bool(types[index] == "sliding_attention")
    takes_window = "sliding_window" in _names_in_forward(type(module))
    return takes_window and getattr(config, "sliding_window", None) is not None


def heads_of(module: nn.Module) -> Heads:
    """Return the numbers of heads and their widths, from the attributes of the module, else from its config."""
    config = getattr(module, "config", None)

    def first(names: tuple[str, ...]) -> int | None:
        for source in (module, config):
            for name in names:
                value = getattr(source, name, None)
                if isinstance(value, int):
                    return value
        return None

    heads = first(("num_attention_heads", "num_heads", "n_heads", "n_head", "num_query_heads"))
    if heads is None:
        raise ValueError(f"the number of heads of {type(module).__name__} is not in its attributes or its config")
    groups = getattr(module, "num_key_value_groups", None)
    kv_heads = heads // groups if isinstance(groups, int) else first(("num_key_value_heads", "num_kv_heads")) or heads
    head_dim = first(("head_dim", "attention_head_size", "head_size", "qk_head_dim"))
    if head_dim is None:
        width = first(("embed_dim", "hidden_size", "dim"))
        if width is None:
            raise ValueError(f"the width of the heads of {type(module).__name__} is not in its attributes")
        head_dim = width // heads
    return Heads(heads, kv_heads, head_dim, first(("v_head_dim",)) or head_dim)
