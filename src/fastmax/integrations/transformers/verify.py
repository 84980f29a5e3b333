"""verify: run a model once and say what became of each of its attention layers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from fastmax.integrations.transformers import record
from fastmax.integrations.transformers.modules import attention_modules
from fastmax.integrations.transformers.refusals import RefusedError


@dataclass(frozen=True)
class Verification:
    """Names of modules, by what happened to them.

    Attributes:
        fastmax: ran Fastmax.
        softmax: kept softmax, in a window of their own, and why.
        refused: the layer that asked for what Fastmax cannot honour, and what that was; "" where a mask was refused before
            any layer ran. The run ends there.
        unreached: use the attention interface, but did not run with these inputs (or not before the refusal).
        ignored: called attention, and do not use the interface: they do what they always did.
        multihead: nn.MultiheadAttention, which `fastmax.replace_attention` can replace.
    """

    fastmax: tuple[str, ...]
    softmax: dict[str, str]
    refused: dict[str, str]
    unreached: tuple[str, ...]
    ignored: tuple[str, ...]
    multihead: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether every attention layer ran, by Fastmax or, where it has a window, by softmax."""
        return bool(self.fastmax) and not (self.refused or self.unreached or self.ignored or self.multihead)

    def __str__(self) -> str:
        lines = [f"{len(self.fastmax)} layers ran Fastmax"]
        lines += [f"{name}: {why}" for name, why in self.softmax.items()]
        lines += [f"{name or 'the mask'}: {why}" for name, why in self.refused.items()]
        for names, what in (
            (self.unreached, "did not run with these inputs"),
            (self.ignored, "does not use transformers' attention interface, so it is unchanged"),
            (self.multihead, "is an nn.MultiheadAttention: fastmax.replace_attention(model) replaces it"),
        ):
            lines += [f"{name}: {what}" for name in names]
        return "\n".join(lines)


def verify(model: PreTrainedModel, inputs: Mapping[str, Any]) -> Verification:
    """Run `model(**inputs)` once, without gradients and in evaluation mode, and see which layers ran Fastmax."""
    training = model.training
    refused: dict[str, str] = {}
    names = {module: name for name, module in model.named_modules()}
    try:
        with record.recording() as calls, torch.no_grad():
            model.eval()  # type: ignore[no-untyped-call]
            model(**inputs)
    except RefusedError as error:
        asked = [names[module] for module, what in calls.items() if what == record.REFUSED]
        refused[asked[0] if asked else ""] = str(error)
    finally:
        model.train(training)
    known = dict(attention_modules(model))
    done = {names[module]: what for module, what in calls.items()}
    return Verification(
        fastmax=tuple(name for name, what in done.items() if what == record.FASTMAX),
        softmax={name: what for name, what in done.items() if what in (record.SLIDING, record.WINDOW)},
        refused=refused,
        unreached=tuple(name for name in known if name not in done),
        ignored=tuple(_ignored(model, {*known, *done})),
        multihead=tuple(name for name, module in model.named_modules() if isinstance(module, nn.MultiheadAttention)),
    )


def _ignored(model: nn.Module, known: set[str]) -> list[str]:
    """The innermost modules that are called attention, unless they are, hold or are part of one that uses the interface."""
    called = [
        name
        for name, module in model.named_modules()
        if _is_called_attention(module)
        and not any(isinstance(inner, nn.MultiheadAttention) for inner in module.modules())
    ]
    inner = [name for name in called if not any(other.startswith(f"{name}.") for other in called)]
    return [
        name
        for name in inner
        if not any(name == other or name.startswith(f"{other}.") or other.startswith(f"{name}.") for other in known)
    ]


def _is_called_attention(module: nn.Module) -> bool:
    kind = type(module).__name__.lower()
    return ("attention" in kind or "attn" in kind) and "output" not in kind
