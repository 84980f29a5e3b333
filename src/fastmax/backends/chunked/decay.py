"""Forgetting, inside one step of a plan: factors exp(c_i - c_j) from sums of log_decay that never reach beyond the step.

c counts from the start of a step, so that it is exact however long the sequence is; it is summed in fp64. Every exponent
is at most 0. A state is decayed to the last token that was added to it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fastmax.call import Call
from fastmax.decay import bounded, wide


@dataclass(frozen=True)
class Decay:
    """The decays of the tokens start:stop; c[t] is the sum of log_decay from `start` to `t`, including `t`."""

    c: Tensor  # (B, Hkv, stop - start)
    start: int
    dtype: torch.dtype

    @staticmethod
    def of(call: Call, start: int, stop: int) -> "Decay | None":
        """Return the decays of the tokens start:stop, or None if the call has none."""
        if call.log_decay is None:
            return None
        x = bounded(call.log_decay[:, :, start:stop])
        return Decay(x.to(wide(x.device)).cumsum(-1), start, call.dtype)

    def of_queries(self, a: int, b: int) -> Tensor:
        """Return the factor on the state at queries a:b, (B, Hkv, 1, b - a, 1)."""
        return self.c[:, :, None, a - self.start : b - self.start, None].exp().to(self.dtype)

    def of_keys(self, a: int, b: int) -> Tensor:
        """Return the factor on keys a:b at the last token of the step, (B, Hkv, b - a, 1)."""
        return (self.c[:, :, -1:] - self.c[:, :, a - self.start : b - self.start]).exp().to(self.dtype).unsqueeze(-1)

    def of_state(self) -> Tensor:
        """Return the factor on a state from before the step to its last token, (B, Hkv, 1, 1)."""
        return self.c[:, :, -1:, None].exp().to(self.dtype)

    def of_pairs(self, a: int, b: int, c: int, d: int) -> Tensor:
        """Return the factor on keys c:d at queries a:b, (B, Hkv, 1, b - a, d - c); 1 for pairs that causality hides."""
        queries, keys = (
            self.c[:, :, a - self.start : b - self.start, None],
            self.c[:, :, None, c - self.start : d - self.start],
        )
        return (queries - keys).clamp_(max=0).to(self.dtype).exp_().unsqueeze(2)
