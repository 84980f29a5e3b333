"""The sum over keys at every slot, one block of features at a time: the state that queries read, and its adjoint."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fastmax.backends.batched.features import Block, Tokens, unpack, weigh, width
from fastmax.backends.batched.products import product
from fastmax.backends.batched.slots import Packing, Slots, running_sums


@dataclass
class Sums:
    """Sums of phi(x)^T a for tokens x in slots. If causal, those of the slots before each, else of whole sequences.

    `final` holds the sums of whole sequences, (states, Hkv, f, J), by block, once a block has been walked.
    """

    tokens: Tokens
    values: Tensor  # (B, Hkv, slots, n, J)
    narrow: Tensor  # the same in the dtype of products
    slots: Slots
    readers: Slots  # those of the tokens that read the sums
    is_causal: bool
    log_factors: Tensor | None  # (B, Hkv, slots), by which a sum decays over a slot
    start: Tensor | None  # a state, (states, Hkv, F, J)
    at_once: int  # slots per span
    keeps_final: bool
    final: list[Tensor]

    def spans(self, slots: int) -> Iterator[slice]:
        for a in range(0, slots, self.at_once):
            yield slice(a, min(a + self.at_once, slots))

    def walk(self, block: Block) -> Iterator[tuple[slice, Tensor]]:
        """Yield spans of the readers' slots, and what they read, (B, Hkv, slots, f, J) in the dtype of products."""
        tokens = self.tokens
        head_dim = tokens.x.shape[-1]
        start = None if self.start is None else unpack(self.start, block, head_dim, tokens.order)
        if self.is_causal:
            yield from self._prefixes(block, start)
            return
        total = self._totals(block, start)
        if self.keeps_final:
            self.final.append(total)
        read = weigh(total, block, head_dim, torch.empty_like(total, dtype=self._dtype(block)))
        packing = self.readers.packing
        for span in self.spans(self.readers.count):
            if packing is None:
                yield span, read.unsqueeze(2).expand(-1, -1, span.stop - span.start, -1, -1)
            else:
                yield span, _by_slot(read, packing, span)

    def _dtype(self, block: Block) -> torch.dtype:
        return self.values.dtype if block.stop == 0 else self.tokens.half

    def _terms(self, block: Block, span: slice) -> Tensor:
        """Return the sum of each slot, (B, Hkv, slots, f, J)."""
        values = self.values if block.stop == 0 else self.narrow
        return product(self.tokens.features(block, span).mT, values[:, :, span], self.values.dtype)

    def _totals(self, block: Block, start: Tensor | None) -> Tensor:
        packing = self.slots.packing
        batch, heads, *_, columns = self.values.shape
        states = batch if packing is None else packing.starts.shape[0]
        size = states, heads, width(block, self.tokens.x.shape[-1]), columns
        total = self.values.new_zeros(size) if start is None else start.clone()
        carry: Tensor | None = None
        for span in self.spans(self.slots.count):
            terms = self._terms(block, span)
            if packing is None:
                total += terms.sum(2)
            else:
                sums, _, carry = self._scan(terms, span, carry, None)
                _add_last(total, sums, packing, span)
        return total

    def _prefixes(self, block: Block, start: Tensor | None) -> Iterator[tuple[slice, Tensor]]:
        packing = self.slots.packing
        head_dim = self.tokens.x.shape[-1]
        carry = start if packing is None else None
        final: Tensor | None = None
        for span in self.spans(self.slots.count):
            terms = self._terms(block, span)
            first = None if packing is None or start is None else _first(start, packing, span)
            before = carry
            sums, first, carry = self._scan(terms, span, carry, first)
            read = torch.empty_like(sums, dtype=self._dtype(block))
            weigh(sums[:, :, :-1], block, head_dim, read[:, :, 1:])
            if before is None:
                read[:, :, 0] = 0
            else:
                weigh(before, block, head_dim, read[:, :, 0])
            if packing is not None:
                read.masked_fill_(packing.first[span].view(-1, 1, 1), 0)
                if first is not None:
                    read += weigh(first, block, head_dim, torch.empty_like(read))
                if self.keeps_final:
                    states = packing.starts.shape[0]
                    final = terms.new_zeros(states, *terms.shape[1:2], *terms.shape[3:]) if final is None else final
                    _add_last(final, sums, packing, span)
            yield span, read
        if self.keeps_final:
            last = final if packing is not None else carry
            assert last is not None
            self.final.append(last)

    def _scan(
        self, terms: Tensor, span: slice, carry: Tensor | None, first: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return the sums after each slot of a span, what its first slots start from, and the sums after the last."""
        packing = self.slots.packing
        logs = None if self.log_factors is None else self.log_factors[:, :, span]
        if first is not None:
            terms += first if logs is None else first * logs.exp().to(terms.dtype)[..., None, None]
        if packing is not None:
            logs = terms.new_zeros(*terms.shape[:3]) if logs is None else logs
            logs = logs.masked_fill(packing.first[span], -torch.inf)
        if carry is not None:
            terms[:, :, 0] += carry if logs is None else carry * logs[:, :, 0].exp().to(terms.dtype)[..., None, None]
        sums = running_sums(terms, logs)
        return sums, first, sums[:, :, -1]


def _by_slot(states: Tensor, packing: Packing, span: slice) -> Tensor:
    """Return the state of the sequence of each slot, (1, Hkv, slots, f, J)."""
    return states.index_select(0, packing.sequence[span]).transpose(0, 1).unsqueeze(0)


def _first(states: Tensor, packing: Packing, span: slice) -> Tensor:
    """Return the same for slots that are the first of their sequence, and zeros for the others."""
    return _by_slot(states, packing, span).masked_fill(~packing.first[span].view(-1, 1, 1), 0)


def _add_last(final: Tensor, sums: Tensor, packing: Packing, span: slice) -> None:
    """Store the sums after the last slot of each sequence. All else that is added is zero, so the order does not matter."""
    last = packing.last[span]
    of_slots = sums.masked_fill(~last.view(-1, 1, 1), 0).squeeze(0).transpose(0, 1)
    final.index_add_(0, packing.sequence[span], of_slots)
