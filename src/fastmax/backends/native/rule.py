"""Which of the two exact forms is cheaper, and how long its chunks are: functions of the shapes."""

from fastmax.features import feature_count


def form(queries: int, keys: int, head_dim: int, value_dim: int, order: int, is_causal: bool) -> str:
    """ "dense" or "factorized", by counting multiply-adds.

    Dense: Nq Nk (D + Dv + 1), half of it if causal. Factorized: (Nq + Nk) F (Dv + 1). Both run at the same share of the
    machine's peak, so nothing but the counts matters. Of orders 3 and 4 there is only the dense form.
    """
    if order > 2:
        return "dense"
    dense = queries * keys * (head_dim + value_dim + 1) / (2 if is_causal else 1)
    return "dense" if dense <= factorized_cost(queries, keys, head_dim, value_dim, order) else "factorized"


def factorized_cost(queries: int, keys: int, head_dim: int, value_dim: int, order: int) -> int:
    return (queries + keys) * feature_count(head_dim, order) * (value_dim + 1)


def causal_chunk(head_dim: int, order: int, is_causal: bool) -> int:
    """Tokens per step of the factorized form, a multiple of 32, so that it is one of every level's vectors.

    A long chunk spares traffic with the state, a short one work in the dense form inside a causal chunk.
    """
    return 64 if (is_causal and head_dim <= 32) or order == 1 else 128
