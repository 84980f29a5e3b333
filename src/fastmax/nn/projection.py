"""The way from the inputs of nn.MultiheadAttention to heads and back: projections, layouts, nested tensors, extra keys."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear, pad


def check(query: Tensor, key: Tensor, value: Tensor, dims: Sequence[int], batch_first: bool) -> None:
    """Refuse inputs that do not fit one another or a layer of these embedding dimensions."""
    named = (("query", query), ("key", key), ("value", value))
    for (name, x), dim in zip(named, dims, strict=True):
        if x.is_nested:
            raise ValueError(
                f"{name} is a nested tensor, which Fastmax attention takes only as query, key and value in one, with "
                "batch_first=True and need_weights=False: pad it and pass key_padding_mask"
            )
        if query.dim() not in (2, 3) or x.dim() != query.dim():
            shapes = ", ".join(str(tuple(y.shape)) for _, y in named)
            raise ValueError(f"query, key and value must all be 3-D, or all 2-D if unbatched, got {shapes}")
        if x.shape[-1] != dim:
            raise ValueError(f"{name} must have {dim} features, got shape {tuple(x.shape)}")
    # Compared one by one, not as a set: symbolic sizes have no hash.
    batches = [batch_size(x, batch_first) for _, x in named]
    if batches[1] != batches[0] or batches[2] != batches[0] or key.shape[:-1] != value.shape[:-1]:
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in named)
        order = "(B, L, E)" if batch_first else "(L, B, E)"
        raise ValueError(
            f"inputs must have one batch size, key and value one length, in the layout {order}; got {shapes}"
        )


def batch_size(x: Tensor, batch_first: bool) -> int | None:
    """Return the batch size, None if unbatched."""
    return None if x.dim() == 2 else x.shape[0 if batch_first else 1]


def length(x: Tensor, batch_first: bool) -> int:
    return x.shape[1 if batch_first and x.dim() == 3 else 0]


def project(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: Sequence[int],
    weights: Sequence[Tensor | None],
    packed: Tensor | None,
    bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Apply the in-projections, by the packed weight or by those of q, k and v, in as few products as the inputs allow.

    `rows` are the channels that q, k and v get.
    """
    rows = list(rows)
    if packed is None:
        w_q, w_k, w_v = (w for w in weights if w is not None)
    else:
        if query is key is value:
            q, k, v = torch.split(linear(query, packed, bias), rows, -1)
            return q, k, v
        w_q, w_k, w_v = torch.split(packed, rows)
    b_q, b_k, b_v = (None, None, None) if bias is None else torch.split(bias, rows)
    if packed is not None and key is value:
        both = None if bias is None else bias[rows[0] :]
        k, v = torch.split(linear(key, packed[rows[0] :], both), rows[1:], -1)
        return linear(query, w_q, b_q), k, v
    return linear(query, w_q, b_q), linear(key, w_k, b_k), linear(value, w_v, b_v)


def split_heads(x: Tensor, heads: int, batch_first: bool) -> Tensor:
    """Return a view of shape (B, heads, L, D)."""
    x = torch.unflatten(x, -1, (heads, -1))
    if x.dim() == 3:
        return x.transpose(0, 1).unsqueeze(0)
    return x.transpose(1, 2) if batch_first else x.permute(1, 2, 0, 3)


def merge_heads(x: Tensor, batched: bool, batch_first: bool) -> Tensor:
    """Convert (B, heads, L, D) to the layout of the inputs."""
    if not batched:
        return x.squeeze(0).transpose(0, 1).flatten(-2)
    return (x.transpose(1, 2) if batch_first else x.permute(2, 0, 1, 3)).flatten(-2)


def prepend_extra_keys(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    extra_keys: Sequence[Tensor],
    extra_values: Sequence[Tensor],
    is_causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Put the extra keys and values, (1, heads, 1, D) each, before the rest.

    When causal, as many queries of zeros come first too, so that query i still sees the keys up to i; their results are to
    be dropped. An initial state would do as well, but every query would then read it, which short sequences need not do.
    """
    extra = len(extra_keys)
    k = torch.cat([*(x.to(k.dtype).expand(k.shape[0], -1, -1, -1) for x in extra_keys), k], 2)
    v = torch.cat([*(x.to(v.dtype).expand(v.shape[0], -1, -1, -1) for x in extra_values), v], 2)
    if mask is not None:
        mask = pad(mask, (extra, 0), value=True)
    if is_causal:
        q = pad(q, (0, 0, extra, 0))
    return q, k, v, mask


def nested_to_padded(x: Tensor) -> tuple[Tensor, Tensor, list[int]]:
    """Pad (B, lengths, E) to (B, L, E); return it, where a token is padding, (B, L), and the lengths."""
    lengths = [sequence.shape[0] for sequence in x.unbind()]
    padded = torch.nested.to_padded_tensor(x, 0.0)
    ends = torch.tensor(lengths, device=padded.device)
    return padded, torch.arange(padded.shape[1], device=padded.device) >= ends[:, None], lengths


def padded_to_nested(x: Tensor, lengths: list[int], layout: torch.layout) -> Tensor:
    """Return a nested tensor of the first tokens of each sequence."""
    sequences = [sequence[:length] for sequence, length in zip(x.unbind(), lengths, strict=True)]
    return torch.nested.as_nested_tensor(sequences, layout=layout)
