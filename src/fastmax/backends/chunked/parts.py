"""One part of a call as chunked computes it: the sequences of a packed batch come one by one."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from fastmax import parts
from fastmax.call import Call
from fastmax.dropout import Dropout
from fastmax.parts import Part
from fastmax.plan import RULE, Plan


@dataclass(slots=True)
class Work(Call):
    """One part as a separate call, with the dropout masks of its queries and keys, and the point its sums are about."""

    plan: Plan = RULE
    query_masks: Dropout | None = None
    key_masks: Dropout | None = None
    centre: Tensor | None = None  # (B, Hkv, 1, D)

    @staticmethod
    def of(part: Part, call: Call, plan: Plan, masks: tuple[Dropout, Dropout] | None) -> "Work":
        own: Any = part.of_call(call)
        tensors = {field.name: getattr(own, field.name) for field in fields(call)}
        query_masks, key_masks = part.of_masks(masks) or (None, None)
        more: Any = {"cu_seqlens_q": None, "cu_seqlens_k": None}
        return Work(**tensors | more, plan=plan, query_masks=query_masks, key_masks=key_masks)


def sequences(call: Call, heads_at_once: int) -> Iterator[Part]:
    """Yield the parts of a call, those of packed sequences one by one."""
    for part in parts.parts(call, heads_at_once):
        if call.cu_seqlens_q is None or call.cu_seqlens_k is None:
            yield part
            continue
        ends = call.cu_seqlens_q.tolist(), call.cu_seqlens_k.tolist()
        for i in range(len(ends[0]) - 1):
            queries, keys = (slice(x[i], x[i + 1]) for x in ends)
            yield part._replace(queries=queries, keys=keys, states=slice(i, i + 1))
