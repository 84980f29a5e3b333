"""verify: run a model once and report what each of its attention layers did."""

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
    """The attention modules of a model by name, grouped by what they did.

        >>> len(verify(model, inputs).fastmax) == model.config.num_hidden_layers
        True

    Attributes:
        fastmax: ran Fastmax.
        softmax: kept softmax, in a sliding window, with the reason.
        refused: the layer that asked for something that Fastmax cannot honour, with the reason. The name is "" where a mask
            was refused before any layer ran. The run ends there.
        unreached: use the attention interface, but did not run with these inputs (or not before the refusal).
        ignored: are attention by their class name, and do not use the interface. A model of these alone is not run.
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
        """Return True if every attention layer ran, with Fastmax or, if it has a window, with softmax."""
        return bool(self.fastmax) and not (self.refused or self.unreached or self.ignored or self.multihead)

    def __str__(self) -> str:
        lines = [f"{len(self.fastmax)} layers ran Fastmax"]
        lines += [f"{name}: {why}" for name, why in self.softmax.items()]
        lines += [f"{name or 'the mask'}: {why}" for name, why in self.refused.items()]
        for names, what in (
            (self.unreached, "did not run with these inputs"),
            (self.ignored, "does not use transformers' attention interface, so Fastmax cannot be put there"),
            (self.multihead, "is an nn.MultiheadAttention: fastmax.replace_attention(model) replaces it"),
        ):
            lines += [f"{name}: {what}" for name in names]
        return "\n".join(lines)


def verify(model: PreTrainedModel, inputs: Mapping[str, Any]) -> Verification:
    """Run `model(**inputs)` once, without gradients and in evaluation mode, and report which layers ran Fastmax.

        >>> assert verify(model, inputs).ok

    A model in which no module uses transformers' attention interface is not run: it could fail by a mask that is not the one
    that it expects. Errors of the model itself pass through.
    """
    training = model.training
    refused: dict[str, str] = {}
    names = {module: name for name, module in model.named_modules()}
    known = dict(attention_modules(model))
    try:
        with record.recording() as calls, torch.no_grad():
            model.eval()  # type: ignore[no-untyped-call]
            if known:
                model(**inputs)
    except RefusedError as error:
        asked = [names[module] for module, what in calls.items() if what == record.REFUSED]
        refused[asked[0] if asked else ""] = str(error)
    finally:
        model.train(training)
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
    """Return the innermost modules with attention in their class name, without those that use the interface.

    A module that holds or is part of one that uses the interface is left out too.
    """
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
