"""cost: operations and memory of the attention of a model's shape, before anything is built."""

from dataclasses import dataclass

import torch

from fastmax.call import accumulation_dtype
from fastmax.core import MAX_ORDER
from fastmax.features import feature_count
from fastmax.plan import dense_cost
from fastmax.state import FastmaxState


@dataclass(frozen=True)
class Cost:
    """The attention of all layers over one causal sequence: its numbers, as `cost` returns them.

        >>> cost(8, 64, 16_384).features
        2145

    Operations are multiplications and additions of a forward pass, without projections. Causal forms skip half of the pairs.

    Attributes:
        features: F = C(D + order, order), of one head.
        head_state_bytes: the state of one key head.
        state_bytes: the states of all layers, of constant size.
        cache_bytes: keys and values of all tokens, which softmax keeps instead.
        factorized_flops: of Fastmax in linear time.
        dense_flops: of the same in quadratic time, which costs less for short sequences.
        softmax_flops: of softmax at D = Dv = head_dim.
        break_even: from how many tokens on the factorized form takes fewer operations than softmax.
        memory_break_even: from how many tokens on a state takes less memory than keys and values.
    """

    features: int
    head_state_bytes: int
    state_bytes: int
    cache_bytes: int
    factorized_flops: float
    dense_flops: float
    softmax_flops: float
    break_even: int
    memory_break_even: int

    @property
    def speedup(self) -> float:
        """Return how many times as many operations softmax takes as the cheaper form of Fastmax: an estimate of the speed."""
        return self.softmax_flops / min(self.factorized_flops, self.dense_flops)


def cost(
    num_heads: int,
    head_dim: int,
    seq_len: int,
    *,
    qk_head_dim: int | None = None,
    num_kv_heads: int | None = None,
    num_layers: int = 1,
    order: int = 2,
    dtype: torch.dtype = torch.float32,
) -> Cost:
    """Return what the attention of a causal model costs, per sequence: sizes of states, operations and break-evens.

        >>> wide, narrow = (cost(32, 128, 16_384, qk_head_dim=d, num_kv_heads=8, num_layers=32) for d in (128, 32))
        >>> wide.features, narrow.features, round(wide.speedup, 1), round(narrow.speedup, 1)
        (8385, 561, 1.6, 23.3)

    Args:
        num_heads: query heads of a layer.
        head_dim: channels of each head's values, and of queries and keys in softmax.
        seq_len: tokens.
        qk_head_dim: channels of queries and keys in Fastmax, default `head_dim`.
        num_kv_heads: heads of keys and values, default `num_heads`.
        num_layers: layers that are summed up.
        order: of Fastmax.
        dtype: of the tokens and of the softmax cache. A state is of fp32 at least.

    Raises:
        ValueError: a size is no positive int, `num_kv_heads` does not divide `num_heads`, or the order is not supported.
    """
    qk_head_dim = head_dim if qk_head_dim is None else qk_head_dim
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    sizes = {
        "num_heads": num_heads,
        "head_dim": head_dim,
        "seq_len": seq_len,
        "qk_head_dim": qk_head_dim,
        "num_kv_heads": num_kv_heads,
        "num_layers": num_layers,
    }
    for name, size in sizes.items():
        if type(size) is not int or size < 1:
            raise ValueError(f"{name} must be a positive int, got {size!r}")
    if num_heads % num_kv_heads:
        raise ValueError(f"num_kv_heads must divide num_heads = {num_heads}, got {num_kv_heads}")
    if not 1 <= order <= MAX_ORDER:
        raise ValueError(f"order must be from 1 to {MAX_ORDER}, got {order}")
    features = feature_count(qk_head_dim, order)
    state_dtype = accumulation_dtype(dtype)
    head_state = FastmaxState.empty(1, 1, qk_head_dim, head_dim, order, dtype=state_dtype, device="meta").nbytes
    # multiply-adds of all heads of a layer: each key head adds its tokens to a state once, each query head reads it
    factorized = seq_len * (num_heads + num_kv_heads) * features * (head_dim + 1)
    dense = num_heads * dense_cost(seq_len, seq_len, qk_head_dim, head_dim, is_causal=True)
    softmax = num_heads * dense_cost(seq_len, seq_len, head_dim, head_dim, is_causal=True)
    kv_bytes = num_kv_heads * 2 * head_dim * dtype.itemsize
    return Cost(
        features=features,
        head_state_bytes=head_state,
        state_bytes=num_layers * num_kv_heads * head_state,
        cache_bytes=num_layers * seq_len * kv_bytes,
        factorized_flops=2 * num_layers * factorized,
        dense_flops=2 * num_layers * dense,
        softmax_flops=2 * num_layers * softmax,
        break_even=int(seq_len * factorized / softmax) + 1,
        memory_break_even=num_kv_heads * head_state // kv_bytes + 1,
    )
