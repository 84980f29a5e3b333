"""The mask function: it translates a model's attention_mask, and refuses masks that Fastmax cannot honour.

The shape of the result encodes the kind of mask, because the attention function gets nothing else:

    None             nothing is hidden; causal if the module is
    (B, Nk) bool     keys that count, and causal
    (B, 1, 1, Nk)    keys that count, for all queries
    (0, 0)           the positions restart: packed sequences, for which the attention function needs the boundaries
    (B, 1, Nq, Nk)   of layers with a sliding window, which keep softmax (SDPA)
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    prepare_padding_mask,
    sdpa_mask,
)
from transformers.utils.import_utils import is_tracing

from fastmax.integrations.transformers import refusals


def fastmax_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    *,
    local_size: int | None = None,
    use_vmap: bool = False,
    config: Any = None,
    **more: Any,
) -> Tensor | None:
    """Return the mask for the attention function. The signature is transformers'."""
    if isinstance(q_offset, Tensor):  # so that its length can change in a compiled graph
        refusals.static_cache()
    if local_size is not None:
        chunk = getattr(config, "attention_chunk_size", None)
        if chunk == local_size and getattr(config, "sliding_window", None) != local_size:
            refusals.chunked()
        mask: Tensor | None = sdpa_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, local_size,
            use_vmap=use_vmap, config=config, **more,
        )  # fmt: skip
        return mask
    if use_vmap:
        refusals.overlay()
    if mask_function is causal_mask_function or mask_function is bidirectional_mask_function:
        keys = _keys(attention_mask, kv_length, kv_offset)
        return keys if keys is None or mask_function is causal_mask_function else keys[:, None, None]
    if mask_function.__name__ != "and_mask":
        refusals.overlay()
    if is_tracing():  # all that has no mask and no cache looks packed there, as positions are not known
        return _keys(attention_mask, kv_length, kv_offset)
    if not _is_packed(mask_function):
        refusals.overlay()
    return torch.empty(0, 0, dtype=torch.bool, device=more.get("device"))


def _keys(attention_mask: Tensor | None, kv_length: int, kv_offset: int) -> Tensor | None:
    """Return (B, kv_length), or None if all are known to count."""
    if attention_mask is None:
        return None
    if attention_mask.dim() != 2:
        refusals.mask_shape(tuple(attention_mask.shape), attention_mask.dtype)
    padded = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    assert padded is not None
    keys = padded[:, kv_offset : kv_offset + kv_length]
    return None if not is_tracing(keys) and bool(keys.all()) else keys


def _is_packed(mask_function: Callable[..., Any]) -> bool:
    """Return True if the mask is causal within sequences that are packed, and nothing else."""
    parts = [cell.cell_contents for cell in mask_function.__closure__ or ()]
    inner = parts[0] if len(parts) == 1 and isinstance(parts[0], tuple) else ()
    names = [getattr(part, "__qualname__", "").partition(".")[0] for part in inner]
    return names == ["causal_mask_function", "packed_sequence_mask_function"]
