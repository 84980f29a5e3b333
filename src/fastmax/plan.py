"""The plan of a call: the steps in which the sum over keys is taken, and the one rule that picks the cheaper exact form.

A list of steps is executed in order by the forward pass. The backward pass executes it in order once more for the gradient
of the queries, and then in reverse, with the roles of queries and keys exchanged, for that of the keys.
"""

from dataclasses import dataclass
from typing import NamedTuple

from fastmax.features import feature_count

FORMS = ("dense", "factorized")


class Plan(NamedTuple):
    """The choices that are fixed for a call in advance. None leaves a choice to the rule."""

    form: str | None = None
    chunk: int | None = None  # keys per step of a causal sum
    dense_tile: int | None = None  # chunked: queries and keys of one dense tile
    feature_budget: int | None = None  # chunked: elements of one tile of features
    level: str | None = None  # native: the instruction set


RULE = Plan()


def dense_cost(queries: int, keys: int, head_dim: int, value_dim: int, is_causal: bool) -> float:
    """Return the multiply-adds of the dense form: Nq Nk (D + Dv + 1), half of it if causal."""
    return queries * keys * (head_dim + value_dim + 1) / (2 if is_causal else 1)


def factorized_cost(queries: int, keys: int, head_dim: int, value_dim: int, order: int) -> int:
    """Return the multiply-adds of the factorized form: (Nq + Nk) F (Dv + 1)."""
    return (queries + keys) * feature_count(head_dim, order) * (value_dim + 1)


BF16_SPEED = 2.0
"""The speed of the dense form over that in fp32 where a processor multiplies pairs of bf16: 1.6 to 2.0 from 512 tokens on,
and with 1.75 the rule chose wrongly by up to 1.24. The factorized form is not: its sums stay in fp32, for they cancel.
"""


def cheaper_form(
    queries: int, keys: int, head_dim: int, value_dim: int, order: int, is_causal: bool, dense_speed: float = 1.0
) -> str:
    """Return the form with fewer multiply-adds. Both run at the same share of a machine's peak, so only the counts matter.

    With equal lengths and dimensions the forms cross near N = F, or 2 F if causal. If the dense form has faster products,
    they cross `dense_speed` times later.
    """
    dense = dense_cost(queries, keys, head_dim, value_dim, is_causal) / dense_speed
    return "dense" if dense <= factorized_cost(queries, keys, head_dim, value_dim, order) else "factorized"


MAX_DENSE_COST_RATIO = 4
"""The most multiply-adds of the dense form, over those of the factorized one, where a backend has no other form."""


def dense_costs_too_much(queries: int, keys: int, head_dim: int, value_dim: int, order: int) -> bool:
    factorized = factorized_cost(queries, keys, head_dim, value_dim, order)
    return dense_cost(queries, keys, head_dim, value_dim, is_causal=False) > MAX_DENSE_COST_RATIO * factorized


def kernel_chunk(
    head_dim: int, order: int, is_causal: bool, drops_features: bool = False, fades_both_ways: bool = False
) -> int:
    """Return the tokens per chunk of a compiled kernel: long ones save traffic with the state, short ones dense work.

    Where features are dropped, a pair of a causal chunk costs F multiply-adds. Decays in both directions make twice the
    dense work: with heads of 32, chunks of 32 took 2.06 times of an unmasked forward pass, of 64 and 128 2.2 times.
    """
    if fades_both_ways and head_dim <= 32:
        return 32
    if is_causal and drops_features:
        return 32
    if order == 1:
        return 32 if is_causal and head_dim <= 64 else 64
    return 64 if is_causal and head_dim <= 32 else 128


def calls_chunk(features: int, heads: int) -> int:
    """Return the keys per step of a causal sum made of library calls: a power of two from F / 8 to F / 4, more for few heads.

    Inside a chunk the dense form costs in proportion to its length; at F / 4 that is a ninth of the whole. A step of
    fewer than some 512 tokens over all heads would spend its time on calls instead of arithmetic.
    """
    chunk = 64
    while chunk * 8 < features or (chunk < 512 and chunk * heads < 512):
        chunk *= 2
    return chunk


DROPOUT_CHUNK = 64
"""Keys per step where features are dropped: each pair inside a chunk then costs F multiply-adds."""


@dataclass(frozen=True)
class Accumulate:
    """Add the keys start:stop to the state."""

    start: int
    stop: int


@dataclass(frozen=True)
class Attend:
    """Let the queries start:stop read the state, if `reads_state`, and see the keys key_start:key_stop in the dense form.

    When causal, a query sees of these only the keys up to its own position.
    """

    start: int
    stop: int
    reads_state: bool
    key_start: int = 0
    key_stop: int = 0


Step = Accumulate | Attend


def steps(
    queries: int, keys: int, *, form: str, chunk: int, is_causal: bool, has_state: bool, return_state: bool
) -> list[Step]:
    """Return the steps of one sequence. An empty state is not read, and a state that no step reads is not accumulated."""
    if not is_causal:
        if form == "factorized":
            return [Accumulate(0, keys), Attend(0, queries, reads_state=True)]
        attend = Attend(0, queries, has_state, 0, keys)
        return [attend, Accumulate(0, keys)] if return_state else [attend]
    length = max(queries, keys)
    chunk = max(length, 1) if form == "dense" else chunk
    result: list[Step] = []
    for start in range(0, length, chunk):
        stop = start + chunk
        if start < queries:
            reads_state = has_state or (start > 0 and keys > 0)
            result.append(Attend(start, min(stop, queries), reads_state, min(start, keys), min(stop, keys)))
        if start < keys and (return_state or stop < queries):
            result.append(Accumulate(start, min(stop, keys)))
    return result
