"""One problem, made from a seed on every rank, cut into shards: what each rank computes, and what one process does."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from fastmax import fastmax_attention, fastmax_varlen_attention
from fastmax.distributed import context_parallel_attention, context_parallel_varlen_attention
from fastmax.features import feature_count

NAMES = ("query", "key", "value", "scale", "log_decay", "initial_state")


@dataclass(frozen=True)
class Case:
    """`queries` and `keys` are the lengths of the shards; `ends` are cu_seqlens of all tokens, if they are packed."""

    queries: tuple[int, ...]
    keys: tuple[int, ...] | None = None
    ends: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    is_causal: bool = False
    decays: bool = False
    resets: bool = False  # some tokens forget all that came before
    heads: tuple[int, int] = (2, 2)
    masked: bool = False
    learns_scale: bool = False
    initial: bool = False
    return_state: bool = False
    order: int = 2
    head_dim: int = 3
    value_dim: int = 4
    dtype: torch.dtype = torch.float64
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def world(self) -> int:
        return len(self.queries)

    @property
    def key_lengths(self) -> tuple[int, ...]:
        return self.queries if self.keys is None else self.keys

    def inputs(self) -> tuple[dict[str, Tensor], Tensor | None, Tensor, Tensor]:
        """The tensors that have gradients, the mask, and the gradients of the output and of the state."""
        chance = torch.Generator().manual_seed(self.seed)

        def randn(*shape: int) -> Tensor:
            return torch.randn(*shape, dtype=torch.float64, generator=chance)

        n_q, n_k, (h_q, h_k) = sum(self.queries), sum(self.key_lengths), self.heads
        lead = (2,) if self.ends is None else ()
        sequences = 2 if self.ends is None else len(self.ends[0]) - 1
        shape = (sequences, h_k, feature_count(self.head_dim, self.order), self.value_dim + 1)
        tensors = {
            "query": randn(*lead, h_q, n_q, self.head_dim),
            "key": randn(*lead, h_k, n_k, self.head_dim),
            "value": randn(*lead, h_k, n_k, self.value_dim),
        }
        # drawn always, so that a case with and one without have the rest in common
        scale = 0.1 + torch.rand(h_q, dtype=torch.float64, generator=chance) / 10
        decay = -randn(*lead, h_k, n_k).abs() / 4
        if self.resets:
            decay[..., 1::4] = torch.finfo(self.dtype).min
        keys = randn(sequences, h_k, 3, self.head_dim)
        values = randn(sequences, h_k, 3, self.value_dim)
        initial = fastmax_attention(keys, keys, values, order=self.order, return_state=True)[1]
        mask = torch.rand(*lead, 1, 1, n_k, generator=chance) > 0.3
        tensors |= {"scale": scale} if self.learns_scale else {}
        tensors |= {"log_decay": decay} if self.decays else {}
        tensors |= {"initial_state": initial} if self.initial else {}
        do, d_state = randn(*lead, h_q, n_q, self.value_dim), randn(*shape)
        tensors = {name: x.to(self.dtype) for name, x in tensors.items()}
        return tensors, mask if self.masked else None, do.to(self.dtype), d_state.to(self.dtype)

    def call(self, tensors: dict[str, Tensor], mask: Tensor | None, group: ProcessGroup | None = None) -> Any:
        """Run the case in one process, or on the rank of a group."""
        arguments: dict[str, Any] = {
            "is_causal": self.is_causal,
            "order": self.order,
            "enable_gqa": True,
            "return_state": self.return_state,
            # so small that no weight of an odd order is close to 0, where no sum has any precision
            "scale": 0.2 if self.order % 2 else None,
            **{name: tensors[name] for name in NAMES[3:] if name in tensors},
            **self.options,
        }
        q, k, v = (tensors[name] for name in NAMES[:3])
        if group is not None:
            arguments["mesh"] = group
        if self.ends is None:
            return (fastmax_attention if group is None else context_parallel_attention)(q, k, v, mask, **arguments)
        packed = [x.transpose(0, 1) for x in (q, k, v)] + [torch.tensor(ends) for ends in self.ends]
        f = fastmax_varlen_attention if group is None else context_parallel_varlen_attention
        result = f(*packed, mask, **arguments)
        return (result[0].transpose(0, 1), result[1]) if self.return_state else result.transpose(0, 1)


def whole(case: Case) -> dict[str, Tensor]:
    """Output, state and gradients by one process."""
    tensors, mask, do, d_state = case.inputs()
    return _differentiated(case, tensors, mask, do, d_state, None)


def shard(group: ProcessGroup, case: Case) -> dict[str, Tensor]:
    """Those of this rank: the rows of its tokens, its part of the gradients of what all ranks have."""
    rank = group.rank()
    tensors, mask, do, d_state = case.inputs()
    at_q, at_k = (slice(sum(lengths[:rank]), sum(lengths[: rank + 1])) for lengths in (case.queries, case.key_lengths))
    cut = {"query": (-2, at_q), "key": (-2, at_k), "value": (-2, at_k), "log_decay": (-1, at_k)}
    own = {
        name: x.narrow(cut[name][0], cut[name][1].start, cut[name][1].stop - cut[name][1].start) if name in cut else x
        for name, x in tensors.items()
    }
    # the gradient of the state is the sum of all ranks': theirs are different, and that of the first is zero
    weight = rank / sum(range(group.size())) if group.size() > 1 else 1
    return _differentiated(
        case, own, None if mask is None else mask[..., at_k], do[..., at_q, :], d_state * weight, group
    )


def _differentiated(
    case: Case, tensors: dict[str, Tensor], mask: Tensor | None, do: Tensor, d_state: Tensor, group: ProcessGroup | None
) -> dict[str, Tensor]:
    leaves = {name: x.clone().requires_grad_() for name, x in tensors.items()}
    result = case.call(leaves, mask, group)
    outputs, grads = ([*result], [do, d_state]) if case.return_state else ([result], [do])
    found = torch.autograd.grad(
        outputs, list(leaves.values()), [g.to(o.dtype) for o, g in zip(outputs, grads, strict=True)]
    )
    named = dict(zip(("o", "state"), (x.detach() for x in outputs), strict=False))
    return named | {f"d {name}": x for name, x in zip(leaves, found, strict=True)}


def joined(shards: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Join the results of the ranks, and compare those that all ranks must have alike."""
    found = {}
    for name in shards[0]:
        parts = [part[name] for part in shards]
        if name == "state":
            assert all(torch.equal(parts[0], part) for part in parts)
            found[name] = parts[0]
        elif name in ("d scale", "d initial_state"):
            found[name] = torch.stack(parts).sum(0)
        else:
            found[name] = torch.cat(parts, -1 if name == "d log_decay" else -2)
    return found
