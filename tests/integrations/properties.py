"""Figures that must hold of every architecture that runs Fastmax: for tests and for the table in the documentation."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from fastmax.integrations.transformers import FastmaxCache, attention_modules
from tests.integrations import oracle
from tests.integrations.architectures import Architecture

PADDED = ("decoder", "encoder", "seq2seq", "clip")


def outputs(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Tensor:
    """The logits, or the last hidden states, or those of two towers one after the other."""
    torch.manual_seed(0)  # vit_mae draws what it hides
    with torch.no_grad():
        return _main(model(**inputs))


def _main(result: Any) -> Tensor:
    for name in ("logits", "last_hidden_state"):
        if name in result:
            return result[name]
    return torch.cat([result[f"{tower}_model_output"].last_hidden_state for tower in ("text", "vision")], 1)


def oracle_outputs(architecture: Architecture, inputs: dict[str, Tensor], dtype: torch.dtype | None = None) -> Tensor:
    """Return the outputs of the same weights with dense Fastmax in the same place, computed in `dtype`."""
    oracle.register_oracle()
    model: Any = architecture.build(oracle.NAME)
    if dtype is not None and dtype != architecture.dtype:
        model.to(dtype).set_experts_implementation("eager")
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None:
            config.oracle_rotary = architecture.rotary
    return outputs(model, inputs)


def moved_by_padding(model: PreTrainedModel, inputs: dict[str, Tensor]) -> float:
    """Return the change of the outputs of tokens that count if the other tokens differ."""
    mask = inputs["attention_mask"].bool()
    other = {**inputs, "input_ids": torch.where(mask, inputs["input_ids"], 7)}
    a, b = outputs(model, inputs), outputs(model, other)
    if a.shape[1] >= mask.shape[1]:
        a, b = (x[:, : mask.shape[1]][mask] for x in (a, b))
    return (a - b).abs().max().item()


def weights_without_gradient(model: PreTrainedModel, inputs: dict[str, Tensor]) -> list[str]:
    """Return the projections of attention modules that have an output without gradient."""
    model.zero_grad()
    torch.autograd.backward(_main(model(**inputs)).square().sum())
    found = []
    for name, module in attention_modules(model):
        for inner, weight in module.named_parameters():
            if weight.dim() == 2:
                transposed = type(_owner(module, inner)).__name__ == "Conv1D"
                if weight.grad is None or bool((weight.grad.abs().sum(0 if transposed else 1) == 0).any()):
                    found.append(f"{name}.{inner}")
    return found


def _owner(module: nn.Module, parameter: str) -> nn.Module:
    return module.get_submodule(parameter.rpartition(".")[0])


def generated(model: Any, inputs: dict[str, Tensor], cache: str, **options: Any) -> Tensor:
    """Return the tokens generated with a cache: "fastmax", "dynamic", "none", or the "default" of generate()."""
    more: dict[str, dict[str, Any]] = {
        "fastmax": {"past_key_values": FastmaxCache(model.config)},
        "dynamic": {"cache_implementation": "dynamic"},
        "none": {"use_cache": False},
        "default": {},
    }
    torch.manual_seed(0)
    return model.generate(
        **inputs, **{"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, **options, **more[cache]}
    )
