"""Traffic: the bytes that a process receives through torch.distributed, counted as its collectives are called."""

from collections import Counter
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """`with Traffic(world) as traffic: ...; traffic.received`, for `world` processes.

    Of an all-reduce it is what a ring has every process receive: 2 (world - 1) / world of the tensor.
    """

    def __init__(self, world: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.world = world
        self.by_collective: Counter[str] = Counter()

    @property
    def received(self) -> int:
        return sum(self.by_collective.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if func.namespace == "c10d":
            self.by_collective[name] += _received(name, args, self.world)
        return func(*args, **(kwargs or {}))


def _received(name: str, args: Any, world: int) -> int:
    size = _bytes(args[0])
    if name == "allgather_":
        return size - _bytes(args[1])
    if name == "allreduce_":
        return 2 * (world - 1) * size // world
    return 0 if name in ("send", "barrier") else size


def _bytes(x: Any) -> int:
    return x.nbytes if isinstance(x, Tensor) else sum(map(_bytes, x))
