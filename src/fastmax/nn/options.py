"""The options that make an attention layer a Fastmax layer, checked once."""

from dataclasses import dataclass
from math import isfinite, sqrt

from fastmax import validation
from fastmax.call import NORMALIZATIONS, normalization
from fastmax.core import MAX_ORDER
from fastmax.nn import gate
from fastmax.nn.gate import MEMORY


def layer_scale(order: int, head_dim: int) -> float:
    """Return a layer's factor of s: 1 / sqrt(D) for even orders, as in the softmax layer it replaces; 1 / D for odd ones.

    With 1 / sqrt(D) the products of standardized tokens have unit spread, where the polynomial still resembles exp. For an
    odd order 1 / D is the largest scale at which no weight can be negative.
    """
    return 1 / sqrt(head_dim) if order % 2 == 0 else 1 / head_dim


def check_qk_head_dim(qk_head_dim: int | None) -> None:
    """Refuse a number of channels of queries and keys that is none."""
    if qk_head_dim is not None and not (type(qk_head_dim) is int and qk_head_dim >= 1):
        raise ValueError(f"qk_head_dim must be a positive number of channels or None, got {qk_head_dim!r}")


@dataclass(frozen=True)
class LayerOptions:
    """The plain values that make an attention layer a Fastmax layer, as `FastmaxAttention` documents them.

    >>> FastmaxAttention(64, 4, rotary=True).options == LayerOptions(rotary=True)
    True
    """

    order: int = 2
    scale: float | None = None
    learn_scale: bool = False
    normalize: bool | str = True
    rotary: bool = False
    rotary_base: float = 10000.0
    decay: str | None = None
    memory: tuple[float, float] = MEMORY
    dropout_mode: str = "quadratic"
    backend: str = "auto"
    window: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.order <= MAX_ORDER:
            raise ValueError(f"order must be from 1 to {MAX_ORDER}, got {self.order}")
        if self.scale is not None and not isfinite(self.scale):
            raise ValueError(f"scale must be finite, got {self.scale}")
        if not self.rotary_base > 0:
            raise ValueError(f"rotary_base must be positive, got {self.rotary_base}")
        if normalization(self.normalize) not in NORMALIZATIONS:
            raise ValueError(f'normalize must be True, False or "rms", got {self.normalize!r}')
        gate.check(self.decay, self.memory)
        validation.dropout_mode(self.dropout_mode)
        if self.window is not None and not (type(self.window) is int and self.window >= 1):
            raise ValueError(f"window must be a positive number of tokens or None, got {self.window!r}")
        if self.window is not None and (self.learn_scale or self.decay is not None):
            raise ValueError("a layer with a window keeps softmax: learn_scale and decay are for layers without")

    def scale_of(self, head_dim: int) -> float:
        """Return the scale of a layer with heads of this size, or its start if it is learned."""
        if self.scale is not None:
            return float(self.scale)
        return 1 / sqrt(head_dim) if self.window is not None else layer_scale(self.order, head_dim)
