"""A call cut into independent parts, groups of batch elements and heads, and what backends in plain PyTorch share."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from fastmax.call import Call, InputGrads, OutputGrads
from fastmax.dropout import Dropout

ALL = slice(None)


class Part(NamedTuple):
    """The slices of inputs, outputs and states that belong to a part. `heads` counts key heads."""

    batch: slice
    heads: slice
    query_heads: slice
    states: slice
    queries: slice = ALL
    keys: slice = ALL

    def of_queries(self, x: Tensor) -> Tensor:
        return x[self.batch, self.query_heads, self.queries]

    def of_keys(self, x: Tensor) -> Tensor:
        return x[self.batch, self.heads, self.keys]

    def of_states(self, x: Tensor) -> Tensor:
        return x[self.states, self.heads]

    def of_call(self, call: Call) -> Call:
        """Return the part as a separate call. The ends of packed sequences stay those of the whole."""
        if self == WHOLE:
            return call
        return replace(
            call,
            q=self.of_queries(call.q),
            k=self.of_keys(call.k),
            v=self.of_keys(call.v),
            head_scale=None if call.head_scale is None else call.head_scale[self.query_heads],
            log_decay=None if call.log_decay is None else self.of_keys(call.log_decay),
            key_mask=None if call.key_mask is None else self.of_keys(call.key_mask.expand(-1, call.k.shape[1], -1)),
            state_in=None if call.state_in is None else self.of_states(call.state_in),
        )

    def of_masks(self, masks: tuple[Dropout, Dropout] | None) -> tuple[Dropout, Dropout] | None:
        """Return the dropout masks that queries and keys have in the whole call."""
        return masks and (
            masks[0].of_heads(self.batch, self.query_heads, self.queries),
            masks[1].of_heads(self.batch, self.heads, self.keys),
        )

    def of_output_grads(self, grads: OutputGrads) -> OutputGrads:
        return OutputGrads(
            None if grads.o is None else self.of_queries(grads.o),
            None if grads.g is None else self.of_queries(grads.g),
            None if grads.state is None else self.of_states(grads.state),
        )

    def of_input_grads(self, call: Call, out: InputGrads) -> InputGrads:
        return InputGrads(
            self.of_queries(out.q),
            self.of_keys(out.k),
            self.of_keys(out.v),
            out.head_scale if call.head_scale is None else out.head_scale[self.query_heads],
            out.log_decay if call.log_decay is None else self.of_keys(out.log_decay),
            out.state_in if call.state_in is None else self.of_states(out.state_in),
        )


WHOLE = Part(ALL, ALL, ALL, ALL)


def parts(call: Call, heads_at_once: int) -> Iterator[Part]:
    """Yield whole batch elements while they fit, else groups of key heads of one."""
    batch, heads = call.k.shape[:2]
    if 0 < batch * heads <= heads_at_once:
        yield WHOLE
        return
    at_once = max(1, min(heads, heads_at_once))
    batches_at_once = max(1, heads_at_once // max(1, heads))
    for b in range(0, batch, batches_at_once):
        batches = slice(b, min(b + batches_at_once, batch))
        for h in range(0, heads, at_once):
            stop = min(h + at_once, heads)
            query_heads = slice(h * call.groups, stop * call.groups)
            yield Part(batches, slice(h, stop), query_heads, batches if call.cu_seqlens_k is None else ALL)


def inverse(g: Tensor) -> Tensor:
    """Return 1 / g, and 0 where g is 0: a query without keys gets zeros."""
    return g.reciprocal().masked_fill_(g == 0, 0)


def gradient_of_sums(o: Tensor, g: Tensor, grads: OutputGrads, columns: int, dtype: torch.dtype) -> Tensor:
    """Return w = [do / g, -(do . o) / g + dg, 0 ...], the gradient of [f, g], (B, Hq, N, columns)."""
    value_dim = o.shape[-1]
    w = g.new_zeros(*o.shape[:-1], columns, dtype=dtype)
    if grads.o is not None:
        do = grads.o.to(dtype) * inverse(g).unsqueeze(-1)
        w[..., :value_dim] = do
        w[..., value_dim] = -(do * o).sum(-1)
    if grads.g is not None:
        w[..., value_dim] += grads.g
    return w
