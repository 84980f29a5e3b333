"""The exchange of sums between ranks, in three ways that differ in what a query may see.

total      everything, without decay: one sum over all ranks, which every query reads
causal     the tokens before: an exclusive scan, and the local op from the state that arrives
both ways  packed sequences that are not causal, and decay in both directions: a scan from each end
"""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from fastmax.api import run_sweeps
from fastmax.both_directions import merged
from fastmax.call import Call
from fastmax.distributed import layout, local
from fastmax.distributed.layout import Ends, Shard
from fastmax.distributed.scan import Carry, FromLast, Together, Total

Result = tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class Problem:
    """The call of this rank, what came before the whole sequence, and how the tokens of all ranks are cut."""

    call: Call
    initial: Tensor | None
    ends: tuple[Ends, Ends] | None  # cu_seqlens of queries and keys, if packed
    queries: list[int]
    keys: list[int]
    group: ProcessGroup
    attend: local.Attend

    @property
    def is_first(self) -> bool:
        return self.group.rank() == 0

    @property
    def anchors(self) -> tuple[Tensor, ...]:
        """Return the tensors that only one rank sums but all ranks may differentiate."""
        return () if self.initial is None else (self.initial,)

    @property
    def shard(self) -> Shard:
        """Return the tokens of this rank in self attention."""
        if self.ends is None:
            return layout.whole(self.call.k.shape[2])
        return layout.packed(layout.spans(self.keys)[self.group.rank()], self.ends[1])


def together(problem: Problem, return_state: bool) -> Result:
    """Return o of this rank's queries and, if asked for, the state after all tokens, on every rank."""
    call = problem.call
    if call.options.is_causal:
        o, state = causal(problem, return_state)
    elif call.log_decay is not None or (
        problem.ends is not None and problem.ends[0] == problem.ends[1] and problem.queries == problem.keys
    ):
        o, state = both_ways(problem, return_state)
    else:
        o, state = total(problem, return_state)
    if state is None:
        return o, None
    o, state = Together.apply(o, state)  # type: ignore[no-untyped-call]
    return o, state


def causal(problem: Problem, return_state: bool) -> Result:
    """Run the local op from the state that arrives. Only the sequence that crosses the left border reads it."""
    call, attend, shard = problem.call, problem.attend, problem.shard
    head, tail = _head(call, shard), _tail(call, shard)
    own = local.state_of(tail, attend, _start_of_tail(problem, shard))
    through = _through(call, shard)
    carry = Carry(problem.group)
    ticket = carry.send(own, through, *problem.anchors)
    # what does not need the exchange is done while it is under way
    rest = None
    if shard.sequences[shard.begun]:
        assert shard.ends is not None
        ends = tuple(end - shard.head for end in shard.ends[shard.begun.start :])
        begun = local.tokens(call, shard.head, shard.tokens, ends)
        rest = attend(replace(begun, state_in=_initial_of(problem, shard.sequences[shard.begun])))[0]
    dense = local.own_pair(head, attend) if local.may_overlap(head) else None
    arrived = carry.receive(ticket)
    before = arrived
    if problem.initial is not None and problem.is_first and shard.ends is None:
        before = arrived + problem.initial
    if dense is not None:
        read = local.read_pair(head, before, attend, local.fade_from_the_left(head))
        o = merged(dense, read)[0].to(call.options.out_dtype)
    else:
        o = attend(replace(head, state_in=before))[0]
    o = o if rest is None else torch.cat((o, rest), 2)
    if not return_state:
        return o, None
    if shard.ends is not None:
        return o, _final_states(problem, shard, arrived)
    after = own + (arrived if through is None else arrived * through.exp().to(own.dtype)[..., None, None])
    return o, FromLast.apply(problem.group, after)  # type: ignore[no-untyped-call]


def both_ways(problem: Problem, return_state: bool) -> Result:
    """Run the local op and merge it with reads of the states that arrive from the left and from the right."""
    call, attend, shard = problem.call, problem.attend, problem.shard
    head, tail = _head(call, shard), _tail(call, shard)
    through = _through(call, shard)
    to_the_right, to_the_left = Carry(problem.group), Carry(problem.group, reverse=True)
    right_going = to_the_right.send(
        local.state_of(tail, attend, _start_of_tail(problem, shard)), through, *problem.anchors
    )
    left_going = to_the_left.send(local.state_from_the_right(head, attend), through, *problem.anchors)
    here = call
    if shard.ends is not None:
        initial = _initial_of(problem, shard.sequences, without_first=shard.head > 0)
        here = replace(local.tokens(call, 0, shard.tokens, shard.ends), state_in=initial)
    own = local.own_pair(here, partial(run_sweeps, attend=attend))
    arrived = to_the_right.receive(right_going)
    left = local.read_pair(head, arrived, attend, local.fade_from_the_left(head))
    right = local.read_pair(tail, to_the_left.receive(left_going), attend, local.fade_from_the_right(tail))
    o, _ = merged(
        own, local.padded(left, 0, shard.tokens - shard.head), local.padded(right, shard.tokens - shard.tail, 0)
    )
    return o, _final_states(problem, shard, arrived) if return_state else None


def total(problem: Problem, return_state: bool) -> Result:
    """Sum the keys of all ranks, for each sequence that is on more than one."""
    call, attend, initial = problem.call, problem.attend, problem.initial
    if problem.ends is None:
        own = local.state_of(call, attend, initial if problem.is_first else None)
        state = Total.apply(problem.group, own, *problem.anchors)  # type: ignore[no-untyped-call]
        return local.read_pair(call, state, attend)[0], state if return_state else None
    rank, (q_ends, k_ends) = problem.group.rank(), problem.ends
    q_spans, k_spans = layout.spans(problem.queries), layout.spans(problem.keys)
    holders = layout.holders(q_spans, k_spans, q_ends, k_ends)
    shared = [i for i, ranks in enumerate(holders) if len(ranks) > 1]
    here = [i for i, ranks in enumerate(holders) if rank in ranks]
    begun = [i for i in here if holders[i][0] == rank]
    row = {i: n for n, i in enumerate(sorted({*shared, *here}))}  # of the sums that are held here

    def rows(sequences: list[int] | tuple[int, ...]) -> Tensor:
        return _tensor([row[i] for i in sequences], call)

    keys = layout.present(k_spans[rank], k_ends)
    packed = replace(call, cu_seqlens_k=_tensor(layout.local_ends(k_spans[rank], k_ends, keys), call))
    sums = _zeros(call, len(row)).index_add(0, rows(keys), local.state_of(packed, attend))
    if initial is not None:
        sums = sums.index_add(0, rows(begun), initial[begun])
    summed = Total.apply(problem.group, sums[rows(shared)], *problem.anchors)  # type: ignore[no-untyped-call]
    sums = sums.index_copy(0, rows(shared), summed)
    queries = layout.present(q_spans[rank], q_ends)
    cu = _tensor(layout.local_ends(q_spans[rank], q_ends, queries), call)
    o = local.read_pair(replace(call, cu_seqlens_q=cu, cu_seqlens_k=cu), sums[rows(queries)], attend)[0]
    if not return_state:
        return o, None
    owned = _zeros(call, len(holders)).index_copy(0, _tensor(begun, call), sums[rows(begun)])
    return o, _everywhere(problem, owned, [i for i, ranks in enumerate(holders) if not ranks], summed)


def _head(call: Call, shard: Shard) -> Call:
    return call if shard.ends is None else local.tokens(call, 0, shard.head)


def _tail(call: Call, shard: Shard) -> Call:
    return call if shard.ends is None else local.tokens(call, shard.tokens - shard.tail, shard.tokens)


def _through(call: Call, shard: Shard) -> Tensor | None:
    """Return the log_decay of what passes through this shard, (B, Hkv): -inf if nothing does, None if all does unfaded."""
    if shard.through:
        return None if call.log_decay is None and shard.ends is None else local.total_decay(call)
    return local.total_decay(call).detach().fill_(-torch.inf)


def _start_of_tail(problem: Problem, shard: Shard) -> Tensor | None:
    """Return the state before the sequence that continues on the right, if its first token is on this rank."""
    if problem.initial is None:
        return None
    if shard.ends is None:
        return problem.initial if problem.is_first else None
    return problem.initial[[shard.sequences[-1]]] if shard.tail and not shard.through else None


def _initial_of(problem: Problem, sequences: tuple[int, ...], *, without_first: bool = False) -> Tensor | None:
    """Return the rows of these sequences, with zeros for the first if its state is on another rank."""
    if problem.initial is None:
        return None
    rows = problem.initial[list(sequences[1 if without_first else 0 :])]
    return torch.cat((torch.zeros_like(problem.initial[:1]), rows)) if without_first else rows


def _final_states(problem: Problem, shard: Shard, arrived: Tensor) -> Tensor:
    """Return the state after each sequence, (sequences, ...), from the rank of its last token, or its initial state."""
    assert problem.ends is not None
    call, attend, ends = problem.call, problem.attend, problem.ends[1]
    found, numbers = [], []
    if shard.head and not shard.through:
        found.append(local.state_of(_head(call, shard), attend, arrived))
        numbers.append(shard.sequences[0])
    stop = shard.tokens if shard.through else shard.tokens - shard.tail
    inner = [i for i in shard.sequences[shard.begun] if not (shard.tail and i == shard.sequences[-1])]
    if inner and not shard.through:
        assert shard.ends is not None
        local_ends = tuple(end - shard.head for end in shard.ends[shard.begun.start :])[: len(inner) + 1]
        part = local.tokens(call, shard.head, stop, local_ends)
        found.append(local.state_of(part, attend, _initial_of(problem, tuple(inner))))
        numbers += inner
    states = _zeros(call, len(ends) - 1)
    if found:
        states = states.index_copy(0, _tensor(numbers, call), torch.cat(found))
    empty = [i for i in range(len(ends) - 1) if ends[i] == ends[i + 1]]
    return _everywhere(problem, states, empty, arrived)


def _everywhere(problem: Problem, states: Tensor, empty: list[int], anchor: Tensor) -> Tensor:
    """Copy states that are on one rank each to every rank. `anchor` has gradients on all ranks or on none."""
    if problem.initial is not None and problem.is_first:
        states = states.index_copy(0, _tensor(empty, problem.call), problem.initial[empty])
    everywhere: Tensor = Total.apply(problem.group, states, anchor, *problem.anchors)  # type: ignore[no-untyped-call]
    return everywhere


def _zeros(call: Call, states: int) -> Tensor:
    return call.k.new_zeros((states, *call.state_shape[1:]), dtype=call.dtype)


def _tensor(numbers: list[int] | tuple[int, ...], call: Call) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device=call.q.device)
