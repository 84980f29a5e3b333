"""Forgetting as a layer learns it: the log_decay of every token and key head."""

from math import log

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, logsigmoid

from fastmax import _choices
from fastmax.call import accumulation_dtype

KINDS = _choices.DECAYS


def start_bias(heads: int, memory: tuple[float, float]) -> Tensor:
    """(heads,): logits of the decays 1 - 2^-m, m from memory[0] to memory[1] over the heads: reaches of some 2^m tokens."""
    keep = 1 - 2.0 ** -torch.linspace(*memory, heads, dtype=torch.float64)
    return torch.logit(keep).to(torch.get_default_dtype())


class Gate(nn.Module):
    """log_decay = logsigmoid(x W + b), (B, heads, N). Of the "learned" kind there is no W: one decay per head for all tokens.

    W starts at zero, so that both kinds start alike. Leave both out of weight decay.
    """

    weight: nn.Parameter | None

    def __init__(
        self,
        kind: str,
        embed_dim: int,
        heads: int,
        memory: tuple[float, float],
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if kind not in KINDS:
            raise ValueError(f"decay must be None, {' or '.join(map(repr, KINDS))}, got {kind!r}")
        self.memory = memory
        self.bias = nn.Parameter(torch.empty(heads, device=device, dtype=dtype))
        weight = nn.Parameter(torch.empty(heads, embed_dim, device=device, dtype=dtype)) if kind == "gated" else None
        self.register_parameter("weight", weight)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.bias.copy_(start_bias(len(self.bias), self.memory))
            if self.weight is not None:
                self.weight.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, E) -> (B, heads, N), or (heads, 1) where no token has a say."""
        if self.weight is None:
            return logsigmoid(_wide(self.bias)).unsqueeze(-1)
        return logsigmoid(_wide(linear(x, self.weight, self.bias))).transpose(-1, -2)

    def reach(self, log_decay: Tensor) -> Tensor:
        """(heads,): after how many tokens a key has faded to 1 / e, by the mean of the decays, (..., heads, N)."""
        heads = log_decay.movedim(-2, 0).flatten(1)
        return -1 / heads.mean(1).clamp(max=-log(2) * 1e-6)


def _wide(x: Tensor) -> Tensor:
    """A decay close to 1 is 1 in half precision."""
    return x.to(accumulation_dtype(x.dtype))
