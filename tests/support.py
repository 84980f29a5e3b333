"""Shared by the tests: random inputs, the one tolerance, and ways to force a form or a chunk."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from fastmax.backends.chunked import schedule, tiles


def randn(*shape: int, dtype: torch.dtype = torch.float64, grad: bool = False) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64).to(dtype).requires_grad_(grad)


def assert_within_budget(actual: Tensor, oracle: Tensor, dense: Tensor) -> None:
    """Against the fp64 oracle: at most twice the error of the dense form in the same precision, plus rounding.

    Rounding is that of a few operations on numbers of the size of the inputs, which are of order 1, or of the result. For
    fp64 itself, of which no finer oracle is at hand, it is that of the sums, a thousand times as much.
    """
    assert actual.dtype == dense.dtype, (actual.dtype, dense.dtype)
    assert actual.shape == oracle.shape == dense.shape, (actual.shape, oracle.shape, dense.shape)
    if not oracle.numel():
        return
    error = (actual.double() - oracle).abs().max().item()
    budget = 2 * (dense.double() - oracle).abs().max().item()
    operations = 16_000 if actual.dtype == torch.float64 else 16
    budget += operations * torch.finfo(actual.dtype).eps * max(1.0, oracle.abs().max().item())
    assert error <= budget, f"error {error:.3g} exceeds the budget of {budget:.3g}"


def with_grads(f: Callable[..., Tensor], inputs: list[Tensor], do: Tensor, **options: Any) -> list[Tensor]:
    """The output and the gradients of the inputs."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    o = f(*leaves, **options)
    return [o.detach(), *torch.autograd.grad(o, leaves, do.to(o.dtype))]


@contextmanager
def forced(
    *, dense: bool | None = None, chunk: int | None = None, budget: int | None = None, tile: int | None = None
) -> Iterator[None]:
    """Overrides how the chunked backend cuts the work: form, causal chunk, elements per feature tile, dense tile."""
    overrides = [
        (schedule, "dense_is_cheaper", None if dense is None else lambda *_: dense),
        (schedule, "causal_chunk", None if chunk is None else lambda *_: chunk),
        (tiles, "FEATURE_BUDGET", budget),
        (tiles, "DENSE_TILE", tile),
    ]
    patches = [patch.object(module, name, value) for module, name, value in overrides if value is not None]
    for p in patches:
        p.start()
    try:
        yield
    finally:
        for p in patches:
            p.stop()
