"""Nested tensors, which nn.TransformerEncoder makes of padded batches: padded again for the attention, and back."""

import torch
from torch import Tensor


def to_padded(x: Tensor) -> tuple[Tensor, Tensor, list[int]]:
    """Pad (B, lengths, E) to (B, L, E); return it, where a token is padding, (B, L), and the lengths."""
    lengths = [sequence.shape[0] for sequence in x.unbind()]
    padded = torch.nested.to_padded_tensor(x, 0.0)
    ends = torch.tensor(lengths, device=padded.device)
    return padded, torch.arange(padded.shape[1], device=padded.device) >= ends[:, None], lengths


def from_padded(x: Tensor, lengths: list[int], layout: torch.layout) -> Tensor:
    sequences = [sequence[:length] for sequence, length in zip(x.unbind(), lengths, strict=True)]
    return torch.nested.as_nested_tensor(sequences, layout=layout)
