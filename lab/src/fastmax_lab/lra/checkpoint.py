"""Checkpoints in safetensors, optimizer included and no pickle, written in one step: a kill leaves the old one whole."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from fastmax import _tensor_file
from fastmax_lab.lra.run import RunConfig
from fastmax_lab.lra.run_folder import OtherRunError

FORMAT = "fastmax_lab.lra"
_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
_SPREAD = StateDictOptions(full_state_dict=True)
_MODEL, _OPTIMIZER = "model.", "optimizer."


@dataclass(frozen=True)
class Position:
    """The step of a run. Data order, rates and random numbers follow from it."""

    step: int = 0
    best_step: int = 0
    best_accuracy: float = -1.0


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a file; without an optimizer it is for evaluation only."""

    config: RunConfig
    position: Position
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]


def collect(
    config: RunConfig, position: Position, model: nn.Module, optimizer: torch.optim.Optimizer | None
) -> Checkpoint:
    """Collect the state of a model, wrapped for DDP or FSDP or not. Every process must call it; the first gets the whole."""
    held: dict[str, Tensor] = {}
    if optimizer is not None:
        # only the state: param_groups hold the settings, which come from the configuration
        state: Any = get_optimizer_state_dict(model, optimizer, options=_WHOLE).get("state", {})
        held = {f"{kind}.{name}": x for name, kinds in state.items() for kind, x in kinds.items()}
    weights: Any = get_model_state_dict(model, options=_WHOLE)
    return Checkpoint(config, position, dict(weights), held)


def restore(checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Load into a model and an optimizer made from the same configuration. Every process must call it."""
    set_model_state_dict(model, dict(checkpoint.model), options=_SPREAD)
    if optimizer is not None:
        state: dict[str, dict[str, Tensor]] = {}
        for key, x in checkpoint.optimizer.items():
            kind, _, name = key.partition(".")
            state.setdefault(name, {})[kind] = x
        groups = get_optimizer_state_dict(model, optimizer)["param_groups"]
        set_optimizer_state_dict(model, optimizer, {"state": state, "param_groups": groups}, options=_SPREAD)  # type: ignore[dict-item]


def save(path: Path, checkpoint: Checkpoint) -> None:
    tensors = {_MODEL + name: x for name, x in checkpoint.model.items()}
    tensors |= {_OPTIMIZER + name: x for name, x in checkpoint.optimizer.items()}
    metadata = {
        "format": FORMAT,
        "config": checkpoint.config.to_json(),
        "position": json.dumps(asdict(checkpoint.position)),
    }
    _tensor_file.write(path, tensors, metadata)


def load(path: Path) -> Checkpoint:
    """Load a file. Raise ValueError if it is damaged or is something else."""
    metadata, tensors = _tensor_file.read(path)
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path} is no checkpoint of fastmax-lab lra: its format is {metadata.get('format')}")
    parts = [
        {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}
        for prefix in (_MODEL, _OPTIMIZER)
    ]
    try:
        config = RunConfig.from_json(metadata["config"])
        return Checkpoint(config, Position(**json.loads(metadata["position"])), *parts)
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:  # any error of malformed JSON
        raise ValueError(
            f"{path} is no whole checkpoint of fastmax-lab lra ({type(error).__name__}: {error})"
        ) from error


def load_for(path: Path, config: RunConfig) -> Checkpoint:
    """Return the checkpoint of this very run. Raise OtherRunError with the differences if it is of another."""
    checkpoint = load(path)
    different = checkpoint.config.differences(config)
    if different:
        raise OtherRunError(f"{path} is a checkpoint of another run; it has {'; '.join(different)}")
    return checkpoint
