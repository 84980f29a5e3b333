"""The checkpoint of a conversion: one safetensors file, written atomically."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fastmax import _tensor_file
from fastmax_lab.conversion.recipe import Recipe

FORMAT = "fastmax.convert"
_WEIGHT, _BEST, _OPTIMIZER = "weight.", "best.", "optimizer."


@dataclass
class ConversionProgress:
    """The place in a conversion. Batches and rates follow from the step, so the tensors are all that is missing.

    `kept` is, by stage, the step whose weights did best on the batches held out so far, `best` their error.
    """

    stage: str = "transfer"
    step: int = 0
    tokens: dict[str, int] = field(default_factory=dict)
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    errors: dict[str, dict[str, float]] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)
    curve: list[list[Any]] = field(default_factory=list)
    kept: dict[str, int] = field(default_factory=dict)
    best: float = inf


def save(
    path: Path,
    recipe: Recipe,
    position: ConversionProgress,
    model: nn.Module,
    names: Iterable[str],
    optimizer: torch.optim.Optimizer | None,
    best: Mapping[str, Tensor],
) -> None:
    """Save the parameters of these names, the optimizer's state of them, and the best of them so far."""
    parameters = dict(model.named_parameters())
    tensors = {_WEIGHT + name: parameters[name].detach() for name in names}
    tensors |= {_BEST + name: x for name, x in best.items()}
    if optimizer is not None:
        for name, parameter in parameters.items():
            state = optimizer.state.get(parameter, {})
            tensors |= {f"{_OPTIMIZER}{kind}.{name}": x for kind, x in state.items()}
    metadata = {"format": FORMAT, "recipe": recipe.to_json(), "position": json.dumps(asdict(position))}
    path.parent.mkdir(parents=True, exist_ok=True)
    _tensor_file.write(path, tensors, metadata)


def load(
    path: Path, recipe: Recipe, model: nn.Module
) -> tuple[ConversionProgress, dict[str, Tensor], dict[str, Tensor]]:
    """Load the weights into the model; return the optimizer's and the best ones. Raise ValueError if they do not fit."""
    metadata, tensors = _tensor_file.read(path)
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path} is no checkpoint of a conversion: its format is {metadata.get('format')}")
    different = recipe.differences(metadata["recipe"])
    if different:
        raise ValueError(f"{path} is of a conversion with other settings, got {'; '.join(different)}")
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for key, x in tensors.items():
            if key.startswith(_WEIGHT):
                name = key.removeprefix(_WEIGHT)
                if name not in parameters or parameters[name].shape != x.shape:
                    raise ValueError(f"{path} is of another model: it has {name} of shape {tuple(x.shape)}")
                parameters[name].copy_(x)
    state, best = (
        {key.removeprefix(kind): x for key, x in tensors.items() if key.startswith(kind)}
        for kind in (_OPTIMIZER, _BEST)
    )
    return ConversionProgress(**json.loads(metadata["position"])), state, best


def restore(optimizer: torch.optim.Optimizer, model: nn.Module, state: dict[str, Tensor]) -> None:
    """Restore the state of an optimizer that has made no step."""
    parameters = dict(model.named_parameters())
    for key, x in state.items():
        kind, _, name = key.partition(".")
        parameter = parameters[name]
        # the count of steps stays where the optimizer keeps it, on the CPU
        optimizer.state[parameter][kind] = x if kind == "step" else x.to(parameter.device)
