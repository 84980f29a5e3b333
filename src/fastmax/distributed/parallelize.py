"""parallelize: layers and models whose tokens are a shard of the sequence that the processes of a mesh share."""

from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from fastmax.api import fastmax_attention
from fastmax.distributed.agree import Agreement, Statement
from fastmax.distributed.attention import context_parallel_attention
from fastmax.distributed.group import group_of
from fastmax.distributed.scan import Gathered, Total
from fastmax.nn import FastmaxAttention
from fastmax.nn.sharded import SharesSequence

Model = TypeVar("Model", bound=nn.Module)


def parallelize(model: Model, mesh: DeviceMesh | ProcessGroup | None, *, check: bool = True) -> Model:
    """Make every FastmaxAttention of the model attend over the tokens of all processes of `mesh`. In place.

        >>> model = parallelize(FastmaxLM(LMConfig(vocabulary=256, layers=2, width=64, heads=4)), mesh)
        >>> model(torch.randint(256, (1, 100))).shape  # the tokens of this process
        torch.Size([1, 100, 256])

    Each process then calls the model with its own contiguous shard of the tokens, (B, N, ...), in the order of ranks: rotary
    positions count from the first token of all, and short convolutions see the last tokens of the shard before. Lengths may
    differ. Parameters, names and state_dicts stay as they are, so the model may be wrapped by DDP or `fully_shard`, before or
    after, over any mesh, and saved by torch.distributed.checkpoint.

    Gradients of parameters are those of the tokens here, to be added up over the mesh, as DDP and FSDP do, which then divide
    by the number of processes. So with losses that are means over equal shards, everything is as in one process.

    Args:
        model: a layer or a model, e.g. FastmaxLM. What else is in it must treat tokens one by one, as MLPs and norms do.
        mesh: a one-dimensional DeviceMesh, e.g. mesh["cp"], or a process group; None undoes it.
        check: see `context_parallel_attention`: without it, shards must be of equal length.

    Returns:
        The model itself.
    """
    layers = [module for module in model.modules() if isinstance(module, SharesSequence)]
    if mesh is None:
        for layer in layers:
            layer.sequence = None
        return model
    group = group_of(mesh)
    refusal = _refusal(layers)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    Agreement(Statement({"model": repr(model)}, refusal, ()), group, device).wait()
    sequence = Sharded(group, check)
    for layer in layers:
        layer.sequence = sequence
    return model


def _refusal(layers: list[Any]) -> str | None:
    if not layers:
        return "there is no FastmaxAttention in this model to parallelize: fastmax.replace_attention puts it in"
    for layer in (layer for layer in layers if isinstance(layer, FastmaxAttention)):
        if layer.options.window is not None:
            return "a softmax window is no sum over keys, so the sequence of a layer with one cannot be shared"
        if type(layer)._attend is not fastmax_attention:
            return f"{type(layer).__name__} is no sum over keys, so its sequence cannot be shared"
        if layer.bias_k is not None or layer.add_zero_attn:
            return "add_bias_kv and add_zero_attn have keys that are in no shard: a sequence with them cannot be shared"
    return None


class Sharded:
    """The sequence of `fastmax.nn.sharded.Sequence`, shared by the processes of a group."""

    def __init__(self, group: ProcessGroup, check: bool = True) -> None:
        self.group, self.check = group, check

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        """Return itself: the copy of a model runs on the same processes."""
        return self

    def attend(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, **options: Any) -> Tensor:
        o: Tensor = context_parallel_attention(
            query, key, value, attn_mask, mesh=self.group, check=self.check, **options
        )
        return o

    @property
    def is_first(self) -> bool:
        return self.group.rank() == 0

    def total(self, x: Tensor) -> Tensor:
        summed: Tensor = Total.apply(self.group, x)  # type: ignore[no-untyped-call]
        return summed

    def starts(self, lengths: tuple[int, ...], device: torch.device) -> list[int]:
        before = self._lengths(lengths, device)[: self.group.rank()]
        return [sum(of_rank[i] for of_rank in before) for i in range(len(lengths))]

    def before(self, x: Tensor, count: int) -> Tensor:
        """Return the `count` tokens before this shard. Each rank sends its last `count` tokens, or all that it has."""
        kept = min(count, x.shape[1])
        ends: Tensor = Gathered.apply(  # type: ignore[no-untyped-call]
            self.group, nn.functional.pad(x[:, x.shape[1] - kept :], (0, 0, count - kept, 0))
        )
        lengths = [min(count, length) for (length,) in self._lengths((x.shape[1],), x.device)[: self.group.rank()]]
        tokens = [end[:, count - length :] for end, length in zip(ends, lengths, strict=False)]
        return torch.cat((ends[0][:, :count] * 0, *tokens), 1)[:, -count:] if count else x[:, :0]

    def _lengths(self, own: tuple[int, ...], device: torch.device) -> list[tuple[int, ...]]:
        """Return the lengths of the shards of all ranks."""
        if not self.check:
            return [own] * self.group.size()
        return Agreement(Statement({}, None, own), self.group, device).wait()
