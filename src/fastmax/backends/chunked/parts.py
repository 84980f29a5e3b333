"""A call cut into independent parts: the sequences of a packed batch, and groups of heads small enough for a tile."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from fastmax import dropout
from fastmax.call import Call
from fastmax.plan import RULE, Plan


@dataclass(slots=True)
class Work(Call):
    """One part as a separate call, with the dropout masks of its queries and keys, and the point its sums are about."""

    plan: Plan = RULE
    query_masks: dropout.Dropout | None = None
    key_masks: dropout.Dropout | None = None
    centre: Tensor | None = None  # (B, Hkv, 1, D)


@dataclass(frozen=True)
class Part:
    """The slices of inputs, outputs and states that belong to a part. `heads` counts key heads."""

    batch: slice
    heads: slice
    query_heads: slice
    queries: slice
    keys: slice
    states: slice

    def of_queries(self, x: Tensor) -> Tensor:
        return x[self.batch, self.query_heads, self.queries]

    def of_keys(self, x: Tensor) -> Tensor:
        return x[self.batch, self.heads, self.keys]

    def of_states(self, x: Tensor) -> Tensor:
        return x[self.states, self.heads]

    def work(self, p: Call, plan: Plan, masks: tuple[dropout.Dropout, dropout.Dropout] | None) -> Work:
        own: dict[str, Any] = {
            "plan": plan,
            "q": self.of_queries(p.q),
            "k": self.of_keys(p.k),
            "v": self.of_keys(p.v),
            "head_scale": None if p.head_scale is None else p.head_scale[self.query_heads],
            "log_decay": None if p.log_decay is None else self.of_keys(p.log_decay),
            "key_mask": None if p.key_mask is None else self.of_keys(p.key_mask.expand(-1, p.k.shape[1], -1)),
            "cu_seqlens_q": None,
            "cu_seqlens_k": None,
            "state_in": None if p.state_in is None else self.of_states(p.state_in),
        }
        if masks is not None:
            own["query_masks"] = masks[0].of_heads(self.batch, self.query_heads, self.queries)
            own["key_masks"] = masks[1].of_heads(self.batch, self.heads, self.keys)
        return Work(**({field.name: getattr(p, field.name) for field in fields(p)} | own))


def parts(p: Call, heads_at_once: int) -> Iterator[Part]:
    """Yield whole batch elements while they fit, else groups of heads of one. Packed sequences come one by one."""
    batch, heads = p.k.shape[:2]
    at_once = max(1, min(heads, heads_at_once))
    batches_at_once = max(1, heads_at_once // max(1, heads))
    for queries, keys, state in _sequences(p):
        for b in range(0, batch, batches_at_once):
            batches = slice(b, min(b + batches_at_once, batch))
            for h in range(0, heads, at_once):
                stop = min(h + at_once, heads)
                yield Part(
                    batch=batches,
                    heads=slice(h, stop),
                    query_heads=slice(h * p.groups, stop * p.groups),
                    queries=queries,
                    keys=keys,
                    states=batches if state is None else state,
                )


def _sequences(p: Call) -> Iterator[tuple[slice, slice, slice | None]]:
    if p.cu_seqlens_q is None or p.cu_seqlens_k is None:
        yield slice(0, p.q.shape[2]), slice(0, p.k.shape[2]), None
        return
    q_ends, k_ends = p.cu_seqlens_q.tolist(), p.cu_seqlens_k.tolist()
    for i in range(len(q_ends) - 1):
        yield slice(q_ends[i], q_ends[i + 1]), slice(k_ends[i], k_ends[i + 1]), slice(i, i + 1)
