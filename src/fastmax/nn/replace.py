"""replace_attention: Fastmax in the place of every nn.MultiheadAttention of a model."""

from typing import NamedTuple

from torch import nn

from fastmax.nn import FastmaxAttention
from fastmax.nn.options import LayerOptions


class Replacement(NamedTuple):
    """What `replace_attention` did: the names of the layers it replaced, and why it left others alone."""

    replaced: tuple[str, ...]
    skipped: dict[str, str]


def replace_attention(
    model: nn.Module,
    order: int = 2,
    *,
    scale: float | None = None,
    learn_scale: bool = False,
    normalize: bool = True,
    rotary: bool = False,
    rotary_base: float = 10000.0,
    dropout_mode: str = "quadratic",
    backend: str = "auto",
) -> Replacement:
    """Replace every nn.MultiheadAttention inside `model`, in place. The options are those of `FastmaxAttention`.

    The new layers have the same parameters (the same objects, so an optimizer goes on with them), hooks, device, dtype and
    training mode. With `learn_scale` there is a new parameter per layer: make the optimizer after that. Subclasses of
    nn.MultiheadAttention may mean something else by the same parameters, so they are left alone and named in the result.

    Fastmax runs in train and eval mode alike: nn.TransformerEncoderLayer does not take its fused softmax path with such a
    layer, and nn.TransformerEncoder is told (use_nested_tensor = False) not to make nested tensors of padded batches.

    A function that reads a layer's weights and calls F.multi_head_attention_forward by itself goes on with softmax.
    """
    options = LayerOptions(order, scale, learn_scale, normalize, rotary, rotary_base, dropout_mode, backend)
    if type(model) is nn.MultiheadAttention:
        raise ValueError("model is itself an nn.MultiheadAttention: use FastmaxAttention.from_attention(model)")
    replaced: list[str] = []
    skipped: dict[str, str] = {}
    new: dict[nn.MultiheadAttention, FastmaxAttention] = {}
    # A module that is registered under two names is replaced by one layer under both.
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if not isinstance(module, nn.MultiheadAttention) or isinstance(module, FastmaxAttention):
            continue
        if type(module) is not nn.MultiheadAttention:
            skipped[name] = (
                f"{type(module).__module__}.{type(module).__qualname__} is a subclass of nn.MultiheadAttention"
            )
            continue
        if module not in new:
            new[module] = FastmaxAttention.from_attention(module, options)
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, new[module])
        replaced.append(name)
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder) and any(isinstance(m, FastmaxAttention) for m in module.modules()):
            module.use_nested_tensor = False
    return Replacement(tuple(replaced), skipped)
