"""The losses of the second stage, which compare the whole student with the whole teacher."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import kl_div, normalize

from fastmax_lab.conversion.batches import Batch, counted
from fastmax_lab.conversion.layers import relative_error

Loss = Callable[[Any, Any, Batch], Tensor]


def logits(mine: Any, theirs: Any, batch: Batch) -> Tensor:
    """Return the divergence of the student's predictions from the teacher's in nats, the mean over the tokens that count."""
    apart = kl_div(mine.logits.log_softmax(-1), theirs.logits.log_softmax(-1), reduction="none", log_target=True).sum(
        -1
    )
    if apart.dim() != 2:
        return apart.mean()
    decoder = "decoder_attention_mask" in batch
    weight = counted(batch, mine.logits, decoder).squeeze(-1)
    return (apart * weight).sum() / weight.sum()


def hidden(mine: Any, theirs: Any, batch: Batch) -> Tensor:
    """Return the relative squared error of the hidden states, the mean over the layers."""
    states = list(zip(mine.hidden_states[1:], theirs.hidden_states[1:], strict=True))
    return torch.stack([relative_error(a, b, counted(batch, a, False)) for a, b in states]).mean()


def embeddings(mine: Any, theirs: Any, batch: Batch) -> Tensor:
    """Compare sentence encoders: 1 - cosine of the mean-pooled outputs, their mutual similarities, and hidden states."""
    e, f = (pooled(out.last_hidden_state, batch) for out in (mine, theirs))
    apart = (1 - (e * f).sum(-1)).mean()
    return apart + 5 * (e @ e.T - f @ f.T).square().mean() + hidden(mine, theirs, batch)


def pooled(states: Tensor, batch: Batch) -> Tensor:
    """Return the mean over the tokens that count, of unit length, (B, E)."""
    weight = counted(batch, states, False)
    return normalize((states * weight).sum(1) / weight.sum(1), dim=-1)


LOSSES: dict[str, Loss] = {"logits": logits, "hidden": hidden, "embeddings": embeddings}


def chosen(loss: str | Loss, teacher_output: Any) -> Loss:
    """Return the loss of a name. "auto" compares predictions if there are some, else hidden states."""
    if callable(loss):
        return loss
    if loss == "auto":
        return logits if getattr(teacher_output, "logits", None) is not None else hidden
    if loss not in LOSSES:
        raise ValueError(f"loss must be auto, {', '.join(LOSSES)} or a function, got {loss!r}")
    if loss == "logits" and getattr(teacher_output, "logits", None) is None:
        raise ValueError(f'loss "logits" needs a model with a head, this one returns {type(teacher_output).__name__}')
    return LOSSES[loss]


def name_of(loss: str | Loss) -> str:
    return loss if isinstance(loss, str) else getattr(loss, "__qualname__", type(loss).__name__)
