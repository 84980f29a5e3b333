"""The processes that share a sequence, as a process group."""

from typing import Any

from torch import distributed
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh


def group_of(mesh: DeviceMesh | ProcessGroup | None) -> ProcessGroup:
    """Return the group of a one-dimensional mesh, or the group itself, if this process is in it."""
    if not distributed.is_available() or not distributed.is_initialized():
        raise ValueError(
            "context parallelism needs a process group: start the program with torchrun and call "
            "torch.distributed.init_process_group, or init_device_mesh, first"
        )
    if isinstance(mesh, DeviceMesh):
        return _group_of_mesh(mesh)
    other: Any = mesh
    if other is distributed.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(
            f"this process, rank {distributed.get_rank()} of all, is not in the group that shares the sequence"
        )
    if not isinstance(mesh, ProcessGroup):
        raise TypeError(f"mesh must be a DeviceMesh or a ProcessGroup, got {type(mesh).__name__}")
    return mesh


def _group_of_mesh(mesh: DeviceMesh) -> ProcessGroup:
    names = mesh.mesh_dim_names
    if mesh.ndim != 1:
        hint = "" if names is None else f"; pick the dimension that shares the sequence, e.g. mesh[{names[-1]!r}]"
        raise ValueError(f"mesh must have one dimension, got {mesh.ndim} of sizes {tuple(mesh.shape)}{hint}")
    if mesh.get_coordinate() is None:
        raise ValueError(f"this process, rank {distributed.get_rank()} of all, is not in the mesh {mesh}")
    return mesh.get_group()
