"""Where the sum over keys is taken: a call as a list of steps, and the rule that picks the cheaper exact form.

A schedule is executed in order by the forward pass. The backward pass executes it in order once more for the gradient of
the queries, and then in reverse, with the roles of queries and keys exchanged, for that of the keys.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Accumulate:
    """Add the keys start:stop to the state."""

    start: int
    stop: int


@dataclass(frozen=True)
class Attend:
    """The queries start:stop read the state, if told, and see the keys key_start:key_stop in the dense form.

    When causal, a query sees of these only the keys up to its own position.
    """

    start: int
    stop: int
    reads_state: bool
    key_start: int = 0
    key_stop: int = 0


Step = Accumulate | Attend

DROPOUT_CHUNK = 64
"""Keys per step where features are dropped: each pair inside a chunk then costs F multiply-adds."""


def dense_is_cheaper(queries: int, keys: int, head_dim: int, value_dim: int, features: int, is_causal: bool) -> bool:
    """The rule: compare multiply-adds. Dense: Nq Nk (D + Dv), half of it if causal; factorized: (Nq + Nk) F (Dv + 1).

    With equal lengths and dimensions the forms cross near N = F, or 2 F if causal.
    """
    dense = queries * keys * (head_dim + value_dim) / (2 if is_causal else 1)
    return dense <= (queries + keys) * features * (value_dim + 1)


def causal_chunk(features: int, heads: int) -> int:
    """Keys per step of a causal sum: a power of two from F / 8 to F / 4, or more where heads are few.

    Inside a chunk the dense form costs in proportion to its length; at F / 4 that is a ninth of the whole. A step of
    fewer than some 512 tokens over all heads would spend its time on calls instead of arithmetic.
    """
    chunk = 64
    while chunk * 8 < features or (chunk < 512 and chunk * heads < 512):
        chunk *= 2
    return chunk


def make_schedule(
    queries: int,
    keys: int,
    *,
    head_dim: int,
    value_dim: int,
    features: int,
    heads: int,
    is_causal: bool,
    drops_features: bool,
    has_state: bool,
    return_state: bool,
) -> list[Step]:
    """The steps of one call. A state that is known to be empty is not read, one that nobody reads is not accumulated.

    Where features are dropped the dense form has no shortcut past them, so it serves only inside causal chunks.
    """
    dense = not drops_features and dense_is_cheaper(queries, keys, head_dim, value_dim, features, is_causal)
    if not is_causal:
        if not dense:
            return [Accumulate(0, keys), Attend(0, queries, reads_state=True)]
        attend = Attend(0, queries, has_state, 0, keys)
        return [attend, Accumulate(0, keys)] if return_state else [attend]
    length = max(queries, keys)
    chunk = max(length, 1) if dense else DROPOUT_CHUNK if drops_features else causal_chunk(features, heads)
    steps: list[Step] = []
    for start in range(0, length, chunk):
        stop = start + chunk
        if start < queries:
            reads_state = has_state or (start > 0 and keys > 0)
            steps.append(Attend(start, min(stop, queries), reads_state, min(start, keys), min(stop, keys)))
        if start < keys and (return_state or stop < queries):
            steps.append(Accumulate(start, min(stop, keys)))
    return steps
