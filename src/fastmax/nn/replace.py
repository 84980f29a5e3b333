"""replace_attention: Fastmax in the place of every nn.MultiheadAttention of a model."""

import warnings
from typing import NamedTuple

from torch import nn

from fastmax.nn.attention import FastmaxAttention
from fastmax.nn.options import MEMORY, LayerOptions


class Replacement(NamedTuple):
    """What `replace_attention` did.

    Attributes:
        replaced: the names of the layers it replaced.
        skipped: the names of those it left alone, each with the reason.
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
) -> Replacement:
    """Replace every nn.MultiheadAttention inside `model`, in place. The options are those of `FastmaxAttention`.

    The new layers have the same parameters (the same objects, so an optimizer goes on with them), hooks, device, dtype and
    training mode. With `learn_scale` there is a new parameter per layer: make the optimizer after that. Subclasses of
    nn.MultiheadAttention may mean something else by the same parameters, so they are left alone and named in the result, as
    are modules that are called attention but are no nn.MultiheadAttention. Where nothing is replaced, a UserWarning says so.

    Fastmax runs in train and eval mode alike: nn.TransformerEncoderLayer does not take its fused softmax path with such a
    layer, and nn.TransformerEncoder is told (use_nested_tensor = False) not to make nested tensors of padded batches.

    A function that reads a layer's weights and calls F.multi_head_attention_forward by itself goes on with softmax.

    Returns:
        The names of what was replaced, and why other attentions were left alone.
    """
    options = LayerOptions(
        order, scale, learn_scale, normalize, rotary, rotary_base, decay, memory, dropout_mode, backend
    )
    if type(model) is nn.MultiheadAttention:
        raise ValueError("model is itself an nn.MultiheadAttention: use FastmaxAttention.from_attention(model)")
    replaced: list[str] = []
    skipped: dict[str, str] = {}
    new: dict[nn.MultiheadAttention, FastmaxAttention] = {}
    # A module that is registered under two names is replaced by one layer under both.
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if type(module) is not nn.MultiheadAttention:
            reason = _why_not(module)
            if reason is not None:
                skipped[name] = reason
            continue
        if module not in new:
            new[module] = FastmaxAttention.from_attention(module, options)
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, new[module])
        replaced.append(name)
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder) and any(isinstance(m, FastmaxAttention) for m in module.modules()):
            module.use_nested_tensor = False
    if not replaced:
        warnings.warn(_nothing_replaced(model, skipped), UserWarning, stacklevel=2)
    return Replacement(tuple(replaced), skipped)


def _why_not(module: nn.Module) -> str | None:
    """Why a module that may be an attention is left alone; None for all others, and for those that are Fastmax already."""
    if isinstance(module, FastmaxAttention):
        return None
    kind = f"{type(module).__module__}.{type(module).__qualname__}"
    if isinstance(module, nn.MultiheadAttention):
        return f"{kind} is a subclass of nn.MultiheadAttention"
    called = type(module).__name__.lower()
    if "attention" in called or "attn" in called:
        return f"{kind} is no nn.MultiheadAttention"
    return None


def _nothing_replaced(model: nn.Module, skipped: dict[str, str]) -> str:
    """What was looked for, and what there is instead, each reason with its first name."""
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
