"""The first stage: every attention layer alone, on the inputs that it has in the teacher.

All that differs from the teacher in this stage is inside of attention modules. So a pass of the student in which each
module's output is replaced by that of the teacher's module *is* the teacher's pass: one pass gives every layer its
inputs and its target, and no gradient leaves a layer.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from fastmax.integrations.transformers import attention_modules
from fastmax_lab.conversion.batches import Batch, counted, without_cache


@dataclass(frozen=True)
class LayerPair:
    """An attention module of the student, and the one of the teacher that it is to imitate."""

    name: str
    student: nn.Module
    teacher: nn.Module


def pairs(student: PreTrainedModel, teacher: PreTrainedModel) -> list[LayerPair]:
    return [LayerPair(name, module, teacher.get_submodule(name)) for name, module in attention_modules(student)]


def layer_errors(student: PreTrainedModel, layers: list[LayerPair], batch: Batch, learn: bool) -> dict[str, Tensor]:
    """Return by name the squared error of each layer's output against the teacher's, over the variance of the latter.

    With `learn` the gradients are added to the parameters, layer by layer, so that one layer's graph is held at a time; no
    parameter outside of attention may require one.
    """
    errors: dict[str, Tensor] = {}
    with _imitating(layers, batch, learn, errors), torch.set_grad_enabled(learn):
        inner = _shortest(student, batch)
        inner(**batch, **without_cache(student))
    missing = [pair.name for pair in layers if pair.name not in errors]
    if missing:
        raise ValueError(f"the batch did not reach the attention of {', '.join(missing)}")
    return errors


def teacher_pass(teacher: PreTrainedModel, batch: Batch) -> tuple[Any, list[str]]:
    """Return the teacher's output, and the names of the attention modules whose keys are not of their queries' tokens."""
    crossing: list[str] = []

    def note(name: str) -> Any:
        def hook(_module: nn.Module, _args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if any(kwargs.get(other) is not None for other in ("key_value_states", "encoder_hidden_states")):
                crossing.append(name)

        return hook

    hooks = [
        module.register_forward_pre_hook(note(name), with_kwargs=True) for name, module in attention_modules(teacher)
    ]
    try:
        with torch.no_grad():
            return teacher(**batch, **without_cache(teacher)), crossing
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _imitating(layers: list[LayerPair], batch: Batch, learn: bool, errors: dict[str, Tensor]) -> Iterator[None]:
    def hook_of(pair: LayerPair) -> Any:
        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            mine = output[0] if isinstance(output, tuple) else output
            with torch.no_grad():
                theirs = _teach(pair.teacher, args, kwargs)
            error = relative_error(mine, theirs, counted(batch, mine, _decodes(pair.name, batch)))
            if learn and error.requires_grad:
                torch.autograd.backward(error)
            # a module that several layers share is met several times
            errors[pair.name] = errors.get(pair.name, torch.zeros_like(error.detach())) + error.detach()
            return (theirs, *output[1:]) if isinstance(output, tuple) else theirs

        return hook

    hooks = [pair.student.register_forward_hook(hook_of(pair), with_kwargs=True) for pair in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def relative_error(mine: Tensor, theirs: Tensor, weight: Tensor) -> Tensor:
    """Divide the squared distance by the squared spread of the target, both over the tokens of (B, N, E) in (B, N, 1)."""
    spread = theirs - (theirs * weight).sum((0, 1)) / weight.sum()
    smallest = torch.finfo(theirs.dtype).tiny
    return ((mine - theirs).square() * weight).sum() / (spread.square() * weight).sum().clamp_min(smallest)


def _teach(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Run the teacher's module on the arguments of the student's, with the mask in the form that SDPA takes."""
    call = inspect.signature(module.forward).bind(*args, **kwargs)
    if "attention_mask" in call.arguments:
        length = next(x.shape[1] for x in (*args, *kwargs.values()) if isinstance(x, Tensor))
        call.arguments["attention_mask"] = softmax_mask(call.arguments["attention_mask"], length)
    output = module(*call.args, **call.kwargs)
    result: Tensor = output[0] if isinstance(output, tuple) else output
    return result


def softmax_mask(mask: Tensor | None, length: int) -> Tensor | None:
    """Return the mask of the Fastmax layers for SDPA. A mask of two dimensions is made causal, any other is kept."""
    if mask is None or mask.dim() != 2:
        return mask
    if mask.numel() == 0:
        raise ValueError("conversion takes padded batches, not packed ones: give each sequence its own row")
    causal = torch.ones(length, mask.shape[1], dtype=torch.bool, device=mask.device).tril()
    # A token of padding that sees nothing would be NaN, and NaN stays NaN even where it is not counted.
    own = torch.eye(length, mask.shape[1], dtype=torch.bool, device=mask.device)
    return (mask[:, None, None] & causal) | own


def _shortest(model: PreTrainedModel, batch: Batch) -> nn.Module:
    """Return the model without its head, if that takes the entries of the batch."""
    known = inspect.signature(model.base_model.forward).parameters
    return model.base_model if all(name in known for name in batch) else model


def _decodes(name: str, batch: Batch) -> bool:
    return "decoder_attention_mask" in batch and "decoder" in name.split(".")
