"""ForgetGate: the log_decay of every token and key head, learned."""

from math import isfinite, log

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, logsigmoid

from fastmax.call import accumulation_dtype

KINDS = ("learned", "gated")

MEMORY = (2.0, 12.0)
"""Heads start with reaches from 2^2 to 2^12 tokens. For short text 2 to 7 learns best, for recall 9 for all."""


class ForgetGate(nn.Module):
    """A layer that computes the `log_decay` of `fastmax_attention` from the input of the attention.

    log_decay = logsigmoid(x W + b). The weight W starts at zero, so at first a head decays all tokens equally, at a rate that
    `memory` sets. Leave both parameters out of weight decay.

        >>> gate = ForgetGate(256, heads=8, memory=(2, 7))
        >>> x = torch.randn(1, 100, 256)  # the input of the projections to q, k and v
        >>> gate(x).shape
        torch.Size([1, 8, 100])

    Args:
        width: channels of the input, E.
        heads: heads of keys, Hkv.
        memory: where the decays start: head by head from a reach of 2^memory[0] tokens to one of 2^memory[1].
        kind: "gated" computes a decay per token and head. "learned" has no weight: it is one decay per head for all tokens.
        device: of the parameters.
        dtype: of the parameters. A decay is fp32 at least: one close to 1 would be 1 in half precision.
    """

    weight: nn.Parameter | None

    def __init__(
        self,
        width: int,
        heads: int,
        memory: tuple[float, float] = MEMORY,
        *,
        kind: str = "gated",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check(kind, memory)
        self.memory = memory
        self.bias = nn.Parameter(torch.empty(heads, device=device, dtype=dtype))
        weight = nn.Parameter(torch.empty(heads, width, device=device, dtype=dtype)) if kind == "gated" else None
        self.register_parameter("weight", weight)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start from `memory` again."""
        with torch.no_grad():
            self.bias.copy_(start_bias(len(self.bias), self.memory))
            if self.weight is not None:
                self.weight.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Return log_decay, (B, heads, N), for x of shape (B, N, E); (heads, 1) if `kind` is "learned"."""
        if self.weight is None:
            return logsigmoid(_wide(self.bias)).unsqueeze(-1)
        return logsigmoid(_wide(linear(x, self.weight, self.bias))).transpose(-1, -2)

    def reach(self, log_decay: Tensor) -> Tensor:
        """Return how many tokens it takes until a key has faded to 1 / e, (heads,), at the mean of these decays.

        Args:
            log_decay: (..., heads, N), as `forward` returned it.
        """
        heads = log_decay.movedim(-2, 0).flatten(1)
        return -1 / heads.mean(1).clamp(max=-log(2) * 1e-6)

    def extra_repr(self) -> str:
        width = "" if self.weight is None else f"width={self.weight.shape[1]}, "
        return f"{width}heads={len(self.bias)}, memory={self.memory}"


def check(kind: str | None, memory: tuple[float, float]) -> None:
    """Refuse an unknown kind of decay and reaches that are not positive."""
    if kind is not None and kind not in KINDS:
        raise ValueError(f"decay must be None, {' or '.join(map(repr, KINDS))}, got {kind!r}")
    if len(memory) != 2 or not all(isfinite(m) and m > 0 for m in memory):
        raise ValueError(f"memory must be two positive numbers, got {memory!r}")


def start_bias(heads: int, memory: tuple[float, float]) -> Tensor:
    """Return logits, (heads,), of the decays 1 - 2^-m, m from memory[0] to memory[1]: reaches of about 2^m tokens."""
    keep = 1 - 2.0 ** -torch.linspace(*memory, heads, dtype=torch.float64)
    return torch.logit(keep).to(torch.get_default_dtype())


def _wide(x: Tensor) -> Tensor:
    """Return x in the dtype that sums are taken in. A decay close to 1 is 1 in half precision."""
    return x.to(accumulation_dtype(x.dtype))
