"""The part of a batch that a process has: some of its examples, and of those all tokens or a shard."""

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from fastmax_lab._settings import SettingError
from fastmax_lab.baselines.fastmax import Fastmax
from fastmax_lab.lra.batches import Batch
from fastmax_lab.lra.config import Processes


@dataclass(frozen=True)
class Share:
    """Part `rank` of `world` of the examples, and shard `shard` of `shards` of their tokens."""

    rank: int
    world: int
    shard: int = 0
    shards: int = 1

    def of(self, batch: Batch) -> Batch:
        """Return the tokens of this process; lengths stay those of the whole sequences."""
        return replace(batch, tokens=batch.tokens.tensor_split(self.shards, -1)[self.shard])


def share(accelerator: Any, processes: Processes, model: nn.Module) -> Share:
    """Return the part of this process. If there are several shards, the model attends over all from now on; collective."""
    rank, world, shards = accelerator.process_index, accelerator.num_processes, processes.context_parallel
    if world % shards:
        raise SettingError("context_parallel", f"must divide the number of processes, got {shards} and {world}")
    if shards == 1:
        return Share(rank, world)
    if not any(isinstance(module, Fastmax) for module in model.modules()):
        raise SettingError("context_parallel", "is for attentions that are a sum over keys: fastmax1 to fastmax4")
    from torch.distributed.device_mesh import init_device_mesh

    from fastmax.distributed import parallelize  # DTensor takes long to import

    mesh = init_device_mesh(accelerator.device.type, (world // shards, shards), mesh_dim_names=("examples", "tokens"))
    parallelize(model, mesh["tokens"])
    return Share(rank // shards, world // shards, rank % shards, shards)
