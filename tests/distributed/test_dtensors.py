"""DTensors: batch and heads without communication, tokens through the exchange."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

from fastmax import fastmax_attention
from fastmax.distributed import context_parallel_attention
from tests.distributed.pool import Pool
from tests.distributed.test_exchange import refused

Placements = dict[str, list[Any]]


def tensors(kind: str) -> dict[str, Tensor]:
    torch.manual_seed(0)
    named = {name: torch.randn(4, 4, 6, 3, dtype=torch.float64) for name in ("query", "key", "value")}
    more = {
        "log_decay": -torch.rand(4, 4, 6, dtype=torch.float64),
        "scale": torch.rand(4, dtype=torch.float64),
        "attn_mask": torch.rand(4, 1, 1, 6) > 0.3,
    }
    return named | ({kind: more[kind]} if kind in more else {})


def differentiated(attend: Any, given: dict[str, Tensor], options: dict[str, Any]) -> list[Tensor]:
    """Output, and gradients of what has some."""
    leaves = [x.requires_grad_() for x in given.values() if x.is_floating_point()]
    result = attend(**given, **options)
    o = result[0] if isinstance(result, tuple) else result
    loss = o.square().sum()
    if isinstance(result, tuple):
        loss = loss + result[1].sum()
    return [o.detach(), *torch.autograd.grad(loss, leaves)]


def distributed(_: ProcessGroup, kind: str, by_tokens: bool) -> tuple[list[Tensor], int, bool]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "other"))
    second = Shard(2) if by_tokens else Shard(1)
    placements: Placements = {
        "log_decay": [Shard(0), second],
        "scale": [Replicate(), Replicate() if by_tokens else Shard(0)],
        "attn_mask": [Shard(0), Shard(3) if by_tokens else Replicate()],
    }
    options: dict[str, Any] = {"is_causal": kind == "log_decay"}
    options |= {"return_state": True} if kind == "state" else {}
    given = {
        name: distribute_tensor(x, mesh, placements.get(name, [Shard(0), second])) for name, x in tensors(kind).items()
    }
    with CommDebugMode() as comm:
        found: Any = differentiated(context_parallel_attention if by_tokens else fastmax_attention, given, options)
        kept = list(found[0].placements) == [Shard(0), second]
    return [x.full_tensor() for x in found], comm.get_total_counts(), kept


@pytest.mark.parametrize(
    ("kind", "by_tokens"),
    [(kind, False) for kind in ("plain", "log_decay", "scale", "attn_mask", "state")]
    + [(kind, True) for kind in ("plain", "log_decay", "scale", "attn_mask")],
)
def test_dtensors(pool: Pool, kind: str, by_tokens: bool) -> None:
    options: dict[str, Any] = {"is_causal": kind == "log_decay"}
    options |= {"return_state": True} if kind == "state" else {}
    expected = differentiated(fastmax_attention, tensors(kind), options)
    for found, communications, kept in pool.run(4, distributed, kind, by_tokens):
        assert kept
        assert by_tokens or communications == 0
        for actual, x in zip(found, expected, strict=True):
            torch.testing.assert_close(actual, x, rtol=0, atol=1e-12)


def wrong(_: ProcessGroup, kind: str) -> None:
    mesh = init_device_mesh("cpu", (4,))
    x = distribute_tensor(torch.ones(4, 4, 3), mesh, [Shard(0 if kind == "by heads" else 1)])
    key: Tensor = torch.ones(4, 1, 3) if kind == "mixed" else x
    if kind == "key elsewhere":
        key = distribute_tensor(torch.ones(4, 4, 3), mesh, [Replicate()])
    context_parallel_attention(x, key, key, return_state=kind == "state")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("by heads", "the tokens, dimension 1, must be sharded by one dimension of the mesh"),
        ("mixed", "if one tensor is a DTensor all must be, got Tensor, Tensor among them"),
        ("key elsewhere", "the tokens of key must be sharded as those of query are"),
        ("state", "states are not DTensors"),
    ],
)
def test_dtensors_that_do_not_fit(pool: Pool, kind: str, words: str) -> None:
    told = pool.run(4, refused, partial(wrong, kind=kind))
    assert len(set(told)) == 1
    assert words in told[0]
