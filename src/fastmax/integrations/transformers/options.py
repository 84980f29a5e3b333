"""The options of Fastmax in one attention module of a transformers model, and the parameters that they add."""

from dataclasses import asdict, dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from fastmax.integrations.transformers.modules import Heads
from fastmax.nn.gate import MEMORY, ForgetGate
from fastmax.nn.options import LayerOptions, check_qk_head_dim, layer_scale

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
    qk_head_dim: int | None = None

    def __post_init__(self) -> None:
        check_qk_head_dim(self.qk_head_dim)
        LayerOptions(**{name: value for name, value in vars(self).items() if name != "qk_head_dim"})  # checks the rest

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


class QKProjection(nn.Module):
    """A learned projection of each head's queries and keys to fewer channels, after their rotation.

    It starts from orthonormal rows, at random, the same for a key head and its query heads: products of tokens then are those
    of their parts in one subspace.

    Attributes:
        query: (Hq, D', D).
        key: (Hkv, D', D).
    """

    def __init__(
        self,
        heads: Heads,
        channels: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        start = torch.linalg.qr(torch.randn(heads.kv_heads, heads.head_dim, channels, device=device)).Q.mT.to(dtype)
        self.query = nn.Parameter(start.repeat_interleave(heads.heads // heads.kv_heads, 0))
        self.key = nn.Parameter(start.clone())

    def forward(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Project (B, Hq, Nq, D) and (B, Hkv, Nk, D) to D' channels."""
        return query @ self.query.to(query.dtype).mT, key @ self.key.to(key.dtype).mT


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
        narrow: a `QKProjection`, if `qk_head_dim`; else None.
    """

    head_scale: nn.Parameter | None
    gate: ForgetGate | None
    narrow: QKProjection | None

    def __init__(
        self,
        options: AttentionOptions,
        heads: Heads,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.options = options
        channels = options.qk_head_dim or heads.head_dim
        start = layer_scale(options.order, channels) if options.scale is None else options.scale
        scales = torch.full((heads.heads,), start, device=device, dtype=dtype) if options.learn_scale else None
        self.register_parameter("head_scale", None if scales is None else nn.Parameter(scales))
        self.gate = self.narrow = None
        if options.decay is not None:
            width = heads.kv_heads * heads.value_dim
            self.gate = ForgetGate(
                width, heads.kv_heads, options.memory, kind=options.decay, device=device, dtype=dtype
            )
        if options.qk_head_dim is not None:
            self.narrow = QKProjection(heads, options.qk_head_dim, device=device, dtype=dtype)

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
