"""replace_attention: Fastmax instead of softmax in the nn.MultiheadAttention layers of a model."""

import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import NamedTuple

from torch import nn

from fastmax.nn.attention import FastmaxAttention
from fastmax.nn.gate import MEMORY
from fastmax.nn.options import LayerOptions

Layers = str | Iterable[str] | Callable[[str, nn.MultiheadAttention], bool]
"""A choice of layers: names or patterns, or a function of a name and the layer."""


class Replacement(NamedTuple):
    """The result of `replace_attention`.

        >>> replace_attention(nn.TransformerEncoderLayer(64, 4)).replaced
        ('self_attn',)

    Attributes:
        replaced: names of the layers that were replaced.
        skipped: names of the attention layers that were left alone, each with the reason.
    """

    replaced: tuple[str, ...]
    skipped: dict[str, str]


def replace_attention(
    model: nn.Module,
    order: int = 2,
    *,
    scale: float | None = None,
    learn_scale: bool = False,
    normalize: bool | str = True,
    rotary: bool = False,
    rotary_base: float = 10000.0,
    decay: str | None = None,
    memory: tuple[float, float] = MEMORY,
    dropout_mode: str = "quadratic",
    backend: str = "auto",
    window: int | None = None,
    layers: Layers | None = None,
) -> Replacement:
    """Replace nn.MultiheadAttention layers inside `model` by `FastmaxAttention`, in place.

    The new layers have the same parameters (the same objects, so an optimizer goes on with them), hooks, device, dtype and
    training mode. With `learn_scale` or `decay` there are new parameters: make the optimizer after that.

    Call it once per group of layers to give them different options. A layer that is Fastmax already stays as it is:

        >>> model = nn.Transformer(64, 4, batch_first=True)
        >>> _ = replace_attention(model, layers="encoder.*")
        >>> _ = replace_attention(model, window=64, layers="decoder.layers.[024].self_attn")
        >>> _ = replace_attention(model, decay="gated", layers="decoder.*.self_attn")
        >>> model.decoder.layers[0].multihead_attn  # not chosen by any call
        MultiheadAttention(...)

    Cross attention has neither a decay nor a window, because its keys have no place in the sequence of the queries. An
    encoder-decoder layer's `multihead_attn` and layers with another `kdim` get the other options without these two. In other
    models, leave such layers out by `layers`: a layer with a decay or a window raises ValueError if key is not query.

    Subclasses of nn.MultiheadAttention may use the same parameters differently, so they are left alone and named in the
    result, as are other modules that are called attention. If there is nothing to replace, a UserWarning names what there is.

    Fastmax runs in train and in eval mode: nn.TransformerEncoderLayer does not take its fused softmax path with such a
    layer, and nn.TransformerEncoder no longer makes nested tensors of padded batches (use_nested_tensor = False).

    A function that reads the weights of a layer and calls F.multi_head_attention_forward itself still computes softmax.

    Args:
        model: the model to change.
        order: this and the other options are those of `FastmaxAttention`.
        layers: the layers to replace, default all: a name as in `model.named_modules()`, a pattern like "encoder.*" or
            "layers.[02].*" (`*` matches dots too), several of these, or a function (name, layer) -> bool.

    Returns:
        The names of the layers that were replaced, and those of other attention layers with the reason.

    Raises:
        ValueError: if `layers` chooses no nn.MultiheadAttention, or one of its patterns matches none.
    """
    options = LayerOptions(
        order, scale, learn_scale, normalize, rotary, rotary_base, decay, memory, dropout_mode, backend, window
    )
    if type(model) is nn.MultiheadAttention:
        raise ValueError("model is itself an nn.MultiheadAttention: use FastmaxAttention.from_attention(model)")
    modules = list(model.named_modules(remove_duplicate=False))  # a layer under two names stays one layer under both
    found = {name: module for name, module in modules if type(module) is nn.MultiheadAttention}
    chosen = set(found.values()) if layers is None else {found[name] for name in _choose(layers, found, model)}
    skipped: dict[str, str] = {}
    for name, module in modules:
        reason = "layers leaves it out" if name in found and module not in chosen else _why_not(module)
        if reason is not None:
            skipped[name] = reason
    without_places = replace(options, decay=None, window=None)
    crossing = {module for name, module in found.items() if _is_cross(model, name, module)}
    new = {
        module: FastmaxAttention.from_attention(module, without_places if module in crossing else options)
        for module in dict.fromkeys(found.values())
        if module in chosen
    }
    replaced = tuple(name for name, module in found.items() if module in new)
    for name in replaced:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, new[found[name]])
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder) and any(isinstance(m, FastmaxAttention) for m in module.modules()):
            module.use_nested_tensor = False
    if not replaced:
        warnings.warn(_nothing_replaced(model, skipped), UserWarning, stacklevel=2)
    return Replacement(replaced, skipped)


def _choose(layers: Layers, found: dict[str, nn.MultiheadAttention], model: nn.Module) -> set[str]:
    """Return the names that `layers` chooses of those found."""
    if callable(layers):
        chosen = {name for name, module in found.items() if layers(name, module)}
        missing = [] if chosen else ["layers"]
    else:
        patterns = [layers] if isinstance(layers, str) else list(layers)
        matches = {pattern: {name for name in found if fnmatchcase(name, pattern)} for pattern in patterns}
        chosen = set().union(*matches.values())
        missing = [repr(pattern) for pattern, names in matches.items() if not names] or ([] if chosen else ["layers"])
    if missing:
        raise ValueError(
            f"{missing[0]} matches no torch.nn.MultiheadAttention in {type(model).__name__}; there are: "
            f"{', '.join(found) if found else 'none'}"
        )
    return chosen


def _is_cross(model: nn.Module, name: str, module: nn.MultiheadAttention) -> bool:
    """Return True if the modules show that the keys of a layer are those of another sequence."""
    parent, _, child = name.rpartition(".")
    is_decoder = isinstance(model.get_submodule(parent), nn.TransformerDecoderLayer)
    return module.kdim != module.embed_dim or (is_decoder and child == "multihead_attn")


def _why_not(module: nn.Module) -> str | None:
    """Return why a module that may be an attention is left alone; None for all other modules."""
    if isinstance(module, FastmaxAttention) or type(module) is nn.MultiheadAttention:
        return None
    kind = f"{type(module).__module__}.{type(module).__qualname__}"
    if isinstance(module, nn.MultiheadAttention):
        return f"{kind} is a subclass of nn.MultiheadAttention"
    called = type(module).__name__.lower()
    if "attention" in called or "attn" in called:
        return f"{kind} is no nn.MultiheadAttention"
    return None


def _nothing_replaced(model: nn.Module, skipped: dict[str, str]) -> str:
    """Return a message with the classes that were found instead, each reason with the first name."""
    names: dict[str, list[str]] = {}
    for name, reason in skipped.items():
        names.setdefault(reason, []).append(name or "the model itself")
    found = [
        f"{reason} ({among[0]}{f' and {len(among) - 1} more' if among[1:] else ''})" for reason, among in names.items()
    ]
    already = sum(isinstance(module, FastmaxAttention) for module in model.modules())
    if already:
        found.append(f"{already} of its modules {'is a' if already == 1 else 'are'} FastmaxAttention already")
    return (
        f"replace_attention looked for torch.nn.MultiheadAttention in {type(model).__name__} and found none, so nothing was "
        f"replaced; {'; '.join(found) if found else 'none of its modules is called attention either'}"
    )
