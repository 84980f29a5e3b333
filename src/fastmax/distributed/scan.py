"""The exclusive scan of sums over keys across ranks, and its adjoint, the same scan from the other end.

Rank r has a sum S_r and the total a_r of its log_decay, by which all that came before it fades. What arrives at rank r is

    X_r = sum over s < r of exp(a_(s+1) + ... + a_(r-1)) S_s          X_(r+1) = exp(a_r) X_r + S_r

With Z the gradient that arrives from the other side, dS_r = Z_r and da_r = exp(a_r) <Z_r, X_r>, where

    Z_r = sum over t > r of exp(a_(r+1) + ... + a_(t-1)) dX_t

So both passes send one state per rank and round, whatever the number of tokens. a_r = -inf lets nothing through.
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from fastmax.distributed.wire import from_last, start_gather, start_passing, summed, wait_for

SMALL = 1 << 20
"""Bytes of all ranks together that are gathered whatever the number of ranks: below, a round costs more than its bytes."""


def rounds(world: int) -> int:
    """Return the rounds of the log-step scan: one to move on by one rank, then one per doubling of the reach."""
    return 1 + max(0, world - 2).bit_length()


def gathers(world: int, size: int) -> bool:
    """Return True if gathering all states of `size` bytes is cheaper than a scan with one state per round."""
    return world - 1 <= rounds(world) or (world - 1) * size <= SMALL


class Scan:
    """One exclusive scan, under way from the moment it is made. `reverse` starts from the last rank.

    The order of additions is a function of the number of ranks and the size of a state alone: equal inputs, equal bits.
    """

    def __init__(
        self, state: Tensor, log_decay: Tensor | None, group: ProcessGroup, reverse: bool, gather: bool | None = None
    ) -> None:
        self.group, self.reverse, self.shape = group, reverse, state.shape
        self.world = group.size()
        self.place = self.world - 1 - group.rank() if reverse else group.rank()
        self.heads = None if log_decay is None else log_decay.shape
        parts = [state.flatten()] if log_decay is None else [state.flatten(), log_decay.to(state.dtype).flatten()]
        self.own = torch.cat(parts)
        self.gathered = gathers(self.world, self.own.nbytes) if gather is None else gather
        if self.gathered:
            self.room, self.works = start_gather(self.own, group)
        else:
            self.arrived, self.works = self._round(self.own, 1, first=0)

    def wait(self) -> Tensor:
        """Return the state that arrives at this rank."""
        wait_for(self.works, self.group)
        if self.gathered:
            ordered = self.room[::-1] if self.reverse else self.room
            total = torch.zeros_like(self._split(self.own)[0])
            for packed in ordered[: self.place]:
                state, log_decay = self._split(packed)
                total = _faded(total, log_decay).add_(state)
            return total
        # Element p is now that of p - 1: the first place has nothing, and an inclusive scan over the others is what is left.
        own = torch.zeros_like(self.own) if self.arrived is None else self.arrived
        distance = 1
        while distance < self.world - 1:
            arrived, works = self._round(own, distance, first=1)
            wait_for(works, self.group)
            if arrived is not None:
                own = self._then(arrived, own)
            distance *= 2
        return self._split(own)[0].clone()

    def _round(self, own: Tensor, distance: int, first: int) -> tuple[Tensor | None, list[Work]]:
        """Send from every place from `first` on to the place `distance` further on."""
        to, source = self.place + distance, self.place - distance
        return start_passing(
            own,
            self._rank(to) if self.place >= first and to < self.world else None,
            self._rank(source) if source >= first else None,
            self.group,
        )

    def _rank(self, place: int) -> int:
        return self.world - 1 - place if self.reverse else place

    def _then(self, before: Tensor, after: Tensor) -> Tensor:
        """Merge two neighbours: (a, S) followed by (a', S') is (a + a', exp(a') S + S')."""
        (state, log_decay), (later, its_decay) = self._split(before), self._split(after)
        parts = [(_faded(state, its_decay) + later).flatten()]
        if log_decay is not None and its_decay is not None:
            parts.append((log_decay + its_decay).flatten())
        return torch.cat(parts)

    def _split(self, packed: Tensor) -> tuple[Tensor, Tensor | None]:
        size = self.shape.numel()
        return packed[:size].view(self.shape), None if self.heads is None else packed[size:].view(self.heads)


def _faded(state: Tensor, log_decay: Tensor | None) -> Tensor:
    return state.clone() if log_decay is None else state * log_decay.exp()[..., None, None]


class Carry:
    """A differentiable exclusive scan in two halves, so that work which does not wait for it can be done in between.

    The gradient runs the same way back: it is sent where `receive` was called, and waited for where `send` was. A node of
    autograd runs before those that were made earlier, so what was computed in between is in between again.
    """

    def __init__(self, group: ProcessGroup, reverse: bool = False, *, gather: bool | None = None) -> None:
        """Let `gathers` choose the kind of scan if `gather` is None."""
        self.group, self.reverse, self.gather = group, reverse, gather
        self.forth: Scan | None = None
        self.back: tuple[Scan, Tensor] | None = None

    def send(self, state: Tensor, log_decay: Tensor | None, *anchors: Tensor) -> Tensor:
        """Start the exchange and return what `receive` takes.

        If an anchor has gradients, the exchange has them on every rank: all ranks must take part in the backward pass or
        none, even if only one rank made its sum from that tensor.
        """
        ticket: Tensor = _Send.apply(self, state, log_decay, *anchors)  # type: ignore[no-untyped-call]
        return ticket

    def receive(self, ticket: Tensor) -> Tensor:
        """Return X of this rank."""
        arrived: Tensor = _Receive.apply(self, ticket)  # type: ignore[no-untyped-call]
        return arrived


class _Send(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, carry: Carry, state: Tensor, log_decay: Tensor | None, *anchors: Tensor) -> Tensor:
        carry.forth = Scan(state, log_decay, carry.group, carry.reverse, carry.gather)
        ctx.carry = carry
        ctx.save_for_backward(log_decay, *anchors)
        return state.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        log_decay, *anchors = ctx.saved_tensors
        assert ctx.carry.back is not None
        scan, arrived = ctx.carry.back
        ctx.carry.back = None
        z = scan.wait()
        found = None if log_decay is None else ((z * arrived).sum((-2, -1)) * log_decay.exp()).to(log_decay.dtype)
        return None, z, found, *map(torch.zeros_like, anchors)


class _Receive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, carry: Carry, _: Tensor) -> Tensor:
        assert carry.forth is not None
        scan, carry.forth = carry.forth, None
        arrived = scan.wait()
        ctx.carry, ctx.log_decay = carry, scan._split(scan.own)[1]
        ctx.save_for_backward(arrived)
        return arrived

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (arrived,) = ctx.saved_tensors
        scan = Scan(grads[0], ctx.log_decay, ctx.carry.group, not ctx.carry.reverse, ctx.carry.gather)
        ctx.carry.back = scan, arrived
        return None, arrived.new_zeros(0)


class Total(torch.autograd.Function):
    """The sum over ranks, on every rank; so is its gradient. Anchors as of `Carry.send`."""

    @staticmethod
    def forward(ctx: Any, group: ProcessGroup, state: Tensor, *anchors: Tensor) -> Tensor:
        ctx.group = group
        ctx.save_for_backward(*anchors)
        return summed(state, group)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, summed(grads[0], ctx.group), *map(torch.zeros_like, ctx.saved_tensors)


class FromLast(torch.autograd.Function):
    """The tensor of the last rank, on every rank. Its gradient is the sum over all ranks."""

    @staticmethod
    def forward(ctx: Any, group: ProcessGroup, x: Tensor) -> Tensor:
        ctx.group = group
        return from_last(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        total = summed(grads[0], ctx.group)
        return None, total if ctx.group.rank() == ctx.group.size() - 1 else torch.zeros_like(total)


class Gathered(torch.autograd.Function):
    """(ranks, ...): what each rank has, on every rank; its gradient is the sum of all that they have of it."""

    @staticmethod
    def forward(ctx: Any, group: ProcessGroup, x: Tensor) -> Tensor:
        ctx.group = group
        room, works = start_gather(x.contiguous(), group)
        wait_for(works, group)
        return torch.stack(room)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, summed(grads[0], ctx.group)[ctx.group.rank()]


class Together(torch.autograd.Function):
    """The identity on tensors that ties their gradients: if one is differentiated, all are, so no rank skips an exchange."""

    @staticmethod
    def forward(_: Any, *tensors: Tensor) -> Any:
        return tuple(x.view_as(x) for x in tensors)

    @staticmethod
    def backward(_: Any, *grads: Any) -> Any:
        return grads
