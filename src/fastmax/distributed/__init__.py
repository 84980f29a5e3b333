"""One sequence over many processes, on torch.distributed: attention, layers and models whose tokens are sharded."""

from fastmax.distributed import sharding  # noqa: F401  (registers how the op is sharded)
from fastmax.distributed.attention import context_parallel_attention, context_parallel_varlen_attention
from fastmax.distributed.parallelize import parallelize

__all__ = ["context_parallel_attention", "context_parallel_varlen_attention", "parallelize"]
