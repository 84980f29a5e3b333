"""The tokens of each rank, and the sequences that cross its borders."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import NamedTuple

Ends = tuple[int, ...]
"""cu_seqlens of packed sequences, of all ranks together: 0, the end of the first, ..., the number of tokens."""


@dataclass(frozen=True)
class Shard:
    """The tokens of one rank in self attention. A sequence that is not packed crosses every border."""

    tokens: int
    head: int  # of these tokens, the first so many belong to a sequence that began before
    tail: int  # and the last so many to one that goes on after
    through: bool  # that is one and the same, whether it has tokens here or not
    sequences: tuple[int, ...] = ()  # the numbers of the packed sequences that have tokens here
    ends: Ends | None = None  # their cu_seqlens, counted from the first token here

    @property
    def begun(self) -> slice:
        """Return the sequences of this shard whose first token is on this rank."""
        return slice(1 if self.head else 0, len(self.sequences))


class TokenSpan(NamedTuple):
    """The tokens from `start` up to `stop` of all."""

    start: int
    stop: int


def spans(lengths: list[int]) -> list[TokenSpan]:
    """Return the span of each rank for contiguous shards of these lengths."""
    found, start = [], 0
    for length in lengths:
        found.append(TokenSpan(start, start + length))
        start += length
    return found


def whole(tokens: int) -> Shard:
    """Return the shard of a sequence that is not packed."""
    return Shard(tokens, tokens, tokens, through=True)


def packed(span: TokenSpan, ends: Ends) -> Shard:
    start, stop = span
    left, right = (_sequence_across(place, ends) for place in span)
    head = 0 if left is None else min(stop, ends[left + 1]) - start
    tail = 0 if right is None else stop - max(start, ends[right])
    here = present(span, ends)
    return Shard(stop - start, head, tail, left is not None and left == right, here, local_ends(span, ends, here))


def present(span: TokenSpan, ends: Ends) -> tuple[int, ...]:
    """Return the indices of the sequences that have tokens in the span."""
    first, last = bisect_right(ends, span.start) - 1, bisect_left(ends, span.stop)
    return tuple(i for i in range(max(first, 0), last) if max(ends[i], span.start) < min(ends[i + 1], span.stop))


def local_ends(span: TokenSpan, ends: Ends, sequences: tuple[int, ...]) -> Ends:
    """Return the cu_seqlens of these sequences, which follow one another, within the span."""
    inside = [min(max(ends[i + 1], span.start), span.stop) - span.start for i in sequences]
    return (min(max(ends[sequences[0]] - span.start, 0), span.stop - span.start) if sequences else 0, *inside)


def _sequence_across(place: int, ends: Ends) -> int | None:
    """Return the sequence that has tokens on both sides of a border, or None."""
    i = bisect_right(ends, place) - 1
    return None if not 0 < place < ends[-1] or ends[i] == place else i


def holders(q_spans: list[TokenSpan], k_spans: list[TokenSpan], q_ends: Ends, k_ends: Ends) -> list[list[int]]:
    """Return for each sequence the ranks that have queries or keys of it, in order."""
    found: list[list[int]] = [[] for _ in q_ends[1:]]
    for rank, (q, k) in enumerate(zip(q_spans, k_spans, strict=True)):
        for i in sorted({*present(q, q_ends), *present(k, k_ends)}):
            found[i].append(rank)
    return found


def causal_misfit(queries: list[int], keys: list[int]) -> str | None:
    """Return why a causal call cannot be cut like this, or None: a query needs all keys up to its own on its rank or before.

    So shards of queries and of keys begin and end at the same tokens, where both exist.
    """
    total = sum(keys)
    for rank, (q, k) in enumerate(zip(spans(queries), spans(keys), strict=True)):
        alike = q.start == k.start and (q.stop <= k.stop or k.stop == total)
        all_before = k.start == total <= q.start
        if q.start < q.stop and not alike and not all_before:
            return (
                "causal attention needs shards of queries and of keys that begin and end at the same tokens, but rank "
                f"{rank} has the queries {q.start} to {q.stop} and the keys {k.start} to {k.stop}"
            )
    return None
