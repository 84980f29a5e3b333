"""The start of projections of queries and keys to fewer channels: those that change the teacher's products least.

With queries q and keys k of second moments A and B, the products q . (M k) of a matrix M of rank D' differ from q . k by
||sqrt(A) (M - 1) sqrt(B)||^2 in the mean over pairs. With sqrt(A) sqrt(B) = U S V^T the best M takes the D' largest singular
values, half of each on either side: sqrt(S) U^T A^(-1/2) q and sqrt(S) V^T B^(-1/2) k.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from fastmax.integrations.transformers.options import QKProjection
from fastmax_lab.conversion import layers
from fastmax_lab.conversion.batches import Batch

SMALLEST = 1e-6
"""Share of the largest second moment that a direction has at least, so that one without tokens has an inverse."""


@torch.no_grad()
def start(student: PreTrainedModel, teacher: PreTrainedModel, batch: Batch) -> None:
    """Set the projections of the student, by the queries and keys that its modules make of the teacher's inputs."""
    moments: dict[QKProjection, tuple[Tensor, Tensor]] = {}

    def note(module: Any, inputs: tuple[Tensor, Tensor], _output: Any) -> None:
        query, key = (torch.einsum("bhnc,bhnd->hcd", x.double(), x.double()) for x in inputs)
        if module in moments:  # several layers share it
            query, key = query + moments[module][0], key + moments[module][1]
        moments[module] = query, key

    hooks = [module.register_forward_hook(note) for module in student.modules() if isinstance(module, QKProjection)]
    try:
        layers.layer_errors(student, layers.pairs(student, teacher), batch, learn=False)
    finally:
        for hook in hooks:
            hook.remove()
    for module, (of_queries, of_keys) in moments.items():
        groups = len(of_queries) // len(of_keys)
        of_groups = torch.unflatten(of_queries, 0, (-1, groups)).sum(1)
        query, key = balanced(of_groups, of_keys, module.key.shape[1])
        module.query.copy_(query.repeat_interleave(groups, 0))
        module.key.copy_(key)


def balanced(of_queries: Tensor, of_keys: Tensor, channels: int) -> tuple[Tensor, Tensor]:
    """Return the projections of queries and of keys, (heads, D', D), from their second moments, (heads, D, D)."""
    (root_q, inverse_q), (root_k, inverse_k) = _root(of_queries), _root(of_keys)
    u, s, vh = torch.linalg.svd(root_q @ root_k)
    half = s[..., :channels].sqrt().unsqueeze(-1)
    return half * (u.mT[..., :channels, :] @ inverse_q), half * (vh[..., :channels, :] @ inverse_k)


def _root(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the symmetric square root and its inverse."""
    values, vectors = torch.linalg.eigh(x)
    values = values.clamp_min(SMALLEST * values[..., -1:]).sqrt().unsqueeze(-2)
    return vectors * values @ vectors.mT, vectors / values @ vectors.mT
