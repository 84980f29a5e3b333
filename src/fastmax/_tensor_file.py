"""Tensors and metadata in one safetensors file, written atomically."""

import os
from pathlib import Path

import torch
from torch import Tensor

from fastmax._atomic_file import write_whole


def write(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    import safetensors.torch

    write_whole(path, safetensors.torch.save({name: x.contiguous() for name, x in tensors.items()}, metadata))


def read(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the metadata and the tensors of a file. ValueError if it is damaged or not a safetensors file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(os.fspath(path), framework="pt", device=str(device)) as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
            return file.metadata() or {}, tensors
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file ({error})") from error
