"""DTensors whose tokens are sharded: their local parts, the group that shares the sequence, and the output as a DTensor."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard


class Unwrapped(NamedTuple):
    """The tensors of this rank, in the order given, and where they came from."""

    tensors: tuple[Any, ...]
    group: ProcessGroup
    query: DTensor

    def wrap(self, o: Tensor) -> DTensor:
        """Return `o` as a DTensor that is sharded like the queries."""
        shape = (*self.query.shape[:-1], o.shape[-1])
        strides = [1]
        for size in reversed(shape[1:]):
            strides.insert(0, strides[0] * max(size, 1))
        wrapped: DTensor = DTensor.from_local(
            o.contiguous(),
            self.query.device_mesh,
            self.query.placements,
            run_check=False,
            shape=torch.Size(shape),
            stride=tuple(strides),
        )
        return wrapped


def is_sharded(*tensors: Any) -> bool:
    return any(isinstance(x, DTensor) for x in tensors)


def unwrap(
    query: Any, key: Any, value: Any, attn_mask: Any, scale: Any, log_decay: Any, initial_state: Any, return_state: bool
) -> Unwrapped:
    """Return the local parts. Raise ValueError unless one dimension of one mesh shards the tokens, and nothing else."""
    given = (query, key, value, attn_mask, scale, log_decay)
    wrong = [type(x).__name__ for x in given if isinstance(x, Tensor) and not isinstance(x, DTensor)]
    if wrong:
        raise ValueError(f"if one tensor is a DTensor all must be, got {', '.join(wrong)} among them")
    if initial_state is not None or return_state:
        raise ValueError("states are not DTensors: for initial_state and return_state pass local tensors and a mesh")
    mesh = query.device_mesh
    by = [i for i, placement in enumerate(query.placements) if placement == Shard(query.ndim - 2)]
    if len(by) != 1:
        raise ValueError(
            f"the tokens, dimension {query.ndim - 2}, must be sharded by one dimension of the mesh, got {query.placements}"
        )
    for name, x, dim in (
        ("key", key, -2),
        ("value", value, -2),
        ("log_decay", log_decay, -1),
        ("attn_mask", attn_mask, -1),
    ):
        if x is None:
            continue
        if x.device_mesh != mesh:
            raise ValueError(f"{name} must be on the mesh of query, {mesh}, got {x.device_mesh}")
        if x.placements[by[0]] != Shard(x.ndim + dim):
            raise ValueError(f"the tokens of {name} must be sharded as those of query are, got {x.placements}")
    local = tuple(_local(x, query) if isinstance(x, DTensor) else x for x in given)
    return Unwrapped((*local, None), mesh.get_group(by[0]), query)


def _local(x: DTensor, query: DTensor) -> Tensor:
    """Return the local part; ranks that share a replicated tensor each compute a part of its gradient."""
    grads: list[Placement] = [
        Partial() if isinstance(own, Replicate) and isinstance(of_query, Shard) else own
        for own, of_query in zip(x.placements, query.placements, strict=True)
    ]
    return x.to_local(grad_placements=grads)
