"""Distributed calls without a process group."""

from typing import Any

import pytest
import torch

from fastmax.distributed import context_parallel_attention, parallelize
from fastmax.nn import FastmaxAttention


def test_it_says_how_to_start_one() -> None:
    x, mesh = torch.ones(2, 6, 3), None
    nothing: Any = mesh
    with pytest.raises(ValueError, match="start the program with torchrun"):
        context_parallel_attention(x, x, x, mesh=nothing)
    with pytest.raises(ValueError, match="start the program with torchrun"):
        parallelize(FastmaxAttention(8, 2), "cp")
