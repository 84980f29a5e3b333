"""The options of Fastmax in one attention module of a transformers model, and the parameters that they add."""

from dataclasses import asdict, dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from fastmax.nn.gate import MEMORY, ForgetGate
from fastmax.nn.options import LayerOptions, layer_scale

CHILD = "fastmax"
"""The name of the child module of an attention module that holds its options and parameters."""


@dataclass(frozen=True)
class AttentionOptions:
    """The plain values that `configure` documents. They are written to config.json and read back.

    >>> AttentionOptions(decay="gated").order
    2
    """

    order: int = 2
    normalize: bool | str = True
    scale: float | None = None
    learn_scale: bool = False
    decay: str | None = None
    memory: tuple[float, float] = MEMORY
    window: int | None = None
    dropout_mode: str = "quadratic"
    backend: str = "auto"

    def __post_init__(self) -> None:
        LayerOptions(**vars(self))  # which checks them

    def to_dict(self) -> dict[str, Any]:
        """Return the options for JSON, with lists instead of tuples."""
        return {**asdict(self), "memory": list(self.memory)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the options of a dictionary. An unknown name raises ValueError: it would change the numbers."""
        unknown = sorted(set(values) - set(cls.__dataclass_fields__))
        if unknown:
            raise ValueError(f"this version of fastmax has no options {', '.join(unknown)}")
        shortest, longest = values.get("memory", MEMORY)
        return cls(**{**values, "memory": (shortest, longest)})


class AttentionParameters(nn.Module):
    """The child `fastmax` of an attention module: its options, and the parameters that they add.

        >>> names = configure(model, learn_scale=True)
        >>> model.get_submodule(names[0]).fastmax.head_scale.shape
        torch.Size([2])

    Attributes:
        options: those that `configure` set for this module.
        head_scale: (Hq,), one scale per query head, if `learn_scale`; else None.
        gate: a `fastmax.nn.ForgetGate`, if `decay`; else None. It reads the token's values, (B, N, Hkv * Dv), which every
            cache of keys and values has for earlier tokens too, so that all ways to generate give the same tokens.
    """

    head_scale: nn.Parameter | None
    gate: ForgetGate | None

    def __init__(
        self,
        options: AttentionOptions,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.options = options
        start = layer_scale(options.order, head_dim) if options.scale is None else options.scale
        scales = torch.full((heads,), start, device=device, dtype=dtype) if options.learn_scale else None
        self.register_parameter("head_scale", None if scales is None else nn.Parameter(scales))
        value_dim = head_dim if value_dim is None else value_dim
        self.gate = None
        if options.decay is not None:
            width = kv_heads * value_dim
            self.gate = ForgetGate(width, kv_heads, options.memory, kind=options.decay, device=device, dtype=dtype)

    def log_decay(self, value: Tensor) -> Tensor | None:
        """Return the decay of every token alone, (B, Hkv, N, Dv) -> (B, Hkv, N) or (Hkv, 1)."""
        return None if self.gate is None else self.gate(value.transpose(1, 2).flatten(2))

    def extra_repr(self) -> str:
        return str(self.options)


def parameters_of(module: nn.Module) -> AttentionParameters | None:
    """Return the parameters that `configure` gave to a module, also under a wrapper of PEFT, or None.

    >>> names = configure(model, decay="gated")
    >>> parameters_of(model.get_submodule(names[0])).options.decay
    'gated'
    """
    child: Any = getattr(module, CHILD, None)
    return child if isinstance(getattr(child, "options", None), AttentionOptions) else None
