"""One attention call: its Options, its tensors in the layout that every backend gets, and the gradients in and out."""

from dataclasses import dataclass, fields
from math import prod
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from fastmax.dropout import Dropout
from fastmax.features import feature_count

NORMALIZATIONS = ("standardize", "rms", "none")
"""Equations [5-6]; division by the root mean square alone, which commutes with rotations; the inputs as they are."""


def normalization(normalize: bool | str) -> str:
    """Map `normalize` to its canonical name. Unknown names are rejected in validation.py."""
    return "standardize" if normalize is True else "none" if normalize is False else normalize


def plain_number(scale: float | Tensor | None) -> float | None:
    """Return `scale` as an option: None for a tensor, which is a separate input."""
    return None if isinstance(scale, Tensor) else scale


class Options(NamedTuple):
    """The plain values of a call: the key of prepared calls and a part of the ops' schema.

    Everything that depends on the options is derived from these fields. To add one, add it here, to the public signature
    and to validation.py, and let the backends read it.
    """

    order: int = 2
    is_causal: bool = False  # query i sees the keys j <= i, and all of state_in
    normalize: str = "standardize"
    scale: float | None = None  # multiplies s; a number once a call is bound
    enable_gqa: bool = False
    return_state: bool = False
    dropout_p: float = 0.0
    dropout_mode: str = "quadratic"
    backend: str = "auto"
    out_dtype: torch.dtype | None = None  # known once a call is bound
    # (with log_decay that of the sums: its gradient adds up what the rounding of o leaves of each token)


class Inputs(NamedTuple):
    """The tensors that a caller passes, of shape (..., heads, N, D). `scale` may be a number."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None = None
    scale: float | Tensor | None = None
    log_decay: Tensor | None = None
    initial_state: Tensor | None = None

    def with_heads_first(self) -> "Inputs":
        """Return packed inputs, (tokens, heads, D), as (heads, tokens, D)."""
        q, k, v = (x.transpose(0, 1) for x in self[:3])
        return self._replace(query=q, key=k, value=v)


@runtime_checkable
class RunningState(Protocol):
    """The keys of earlier calls: what `fastmax_attention` needs of a `FastmaxState`, which stands above it."""

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None,
        scale: float | Tensor | None,
        log_decay: Tensor | None,
        options: Options,
    ) -> Tensor:
        """Add these keys and return the output of a causal call with these options."""


def accumulation_dtype(*dtypes: torch.dtype) -> torch.dtype:
    """Return the dtype of sums: fp64 if any input has it, else fp32."""
    return torch.float64 if torch.float64 in dtypes else torch.float32


@dataclass(slots=True)  # treat as immutable: frozen dataclasses are too slow to construct on this path
class Call:
    """Raw (not yet normalized) tensors of any strides and floating dtypes, and what to do with them.

    Hq is a multiple of Hkv; query head h reads key head h // (Hq / Hkv). A packed batch (`cu_seqlens`) has B = 1.
    """

    q: Tensor  # (B, Hq, Nq, D)
    k: Tensor  # (B, Hkv, Nk, D)
    v: Tensor  # (B, Hkv, Nk, Dv)
    head_scale: Tensor | None = None  # (Hq,), multiplies the scale
    log_decay: Tensor | None = None  # (B, Hkv, Nk), <= 0, 0 where a key does not count; of the accumulation dtype
    key_mask: Tensor | None = None  # (B, 1 or Hkv, Nk), bool, True where the key counts
    cu_seqlens_q: Tensor | None = None  # (sequences + 1,), integers from 0 up to Nq
    cu_seqlens_k: Tensor | None = None
    state_in: Tensor | None = None  # (B or sequences, Hkv, F, Dv + 1)
    dropout_seed: Tensor | None = None  # (), int64: there is dropout if and only if there is a seed
    options: Options = Options()  # noqa: RUF009  (immutable)

    @staticmethod
    def unflatten(values: Any) -> "Call":
        """Return the call of an op's arguments: the tensors, then the options."""
        tensors: Any = values[: len(TENSORS)]
        return Call(*tensors, Options(*values[len(TENSORS) :]))  # type: ignore[call-arg]

    def flatten(self) -> tuple[Any, ...]:
        """Return the arguments of an op: the inverse of `unflatten`."""
        return (
            self.q, self.k, self.v, self.head_scale, self.log_decay, self.key_mask, self.cu_seqlens_q, self.cu_seqlens_k,
            self.state_in, self.dropout_seed, *self.options,
        )  # fmt: skip

    @property
    def scale(self) -> float:
        assert self.options.scale is not None
        return self.options.scale

    @property
    def head_dim(self) -> int:
        return self.q.shape[-1]

    @property
    def value_dim(self) -> int:
        return self.v.shape[-1]

    @property
    def groups(self) -> int:
        """Return the number of query heads per key head."""
        return self.q.shape[1] // max(1, self.k.shape[1])

    @property
    def features(self) -> int:
        return feature_count(self.head_dim, self.options.order)

    @property
    def dropout_mode(self) -> str | None:
        """Return the mode of dropout, or None if nothing is dropped: at order 1 there is no feature of degree 2."""
        mode = self.options.dropout_mode
        return None if self.dropout_seed is None or (mode == "quadratic" and self.options.order < 2) else mode

    @property
    def drops_features(self) -> bool:
        return self.dropout_mode in ("standard", "quadratic")

    def dropout_masks(self) -> tuple[Dropout, Dropout] | None:
        """Return the masks of the queries and of the keys, or None."""
        mode, seed = self.dropout_mode, self.dropout_seed
        if mode is None or seed is None:
            return None
        p, features = self.options.dropout_p, self.features
        return Dropout.of(mode, p, seed, 0, self.q.shape, features), Dropout.of(
            mode, p, seed, 1, self.k.shape, features
        )

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of all arithmetic, of g and of the states."""
        return torch.float64 if torch.float64 in (self.q.dtype, self.k.dtype, self.v.dtype) else torch.float32

    @property
    def state_shape(self) -> tuple[int, int, int, int]:
        states = self.k.shape[0] if self.cu_seqlens_k is None else self.cu_seqlens_k.shape[0] - 1
        return states, self.k.shape[1], self.features, self.value_dim + 1

    def new_outputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Allocate o, g and state_out, which has size 0 unless the options request it.

        If heads lie inside tokens in q's memory, they do so in o, so that the transpose back to (B, N, H * Dv) is free.
        """
        q, options, dtype = self.q, self.options, self.dtype
        batch, heads, tokens, _ = q.shape
        value_dim = self.v.shape[-1]
        if q.stride(1) < q.stride(2):
            o = q.new_empty((batch, tokens, heads, value_dim), dtype=options.out_dtype).transpose(1, 2)
        else:
            o = q.new_empty((batch, heads, tokens, value_dim), dtype=options.out_dtype)
        g = q.new_empty((batch, heads, tokens), dtype=dtype)
        return o, g, q.new_empty(self.state_shape if options.return_state else (0,), dtype=dtype)


TENSORS = tuple(field.name for field in fields(Call) if field.name != "options")


class OutputGrads(NamedTuple):
    """The gradients of o, g and state_out, the inputs of the backward pass. Each is None where it is zero."""

    o: Tensor | None
    g: Tensor | None
    state: Tensor | None


class InputGrads(NamedTuple):
    """The gradients of a Call's tensors by name, the outputs of the backward pass. Absent tensors have size 0."""

    q: Tensor
    k: Tensor
    v: Tensor
    head_scale: Tensor
    log_decay: Tensor
    state_in: Tensor

    @staticmethod
    def empty(call: Call) -> "InputGrads":
        """Allocate buffers with the dtypes and memory layouts of the inputs."""
        inputs = (getattr(call, name) for name in InputGrads._fields)
        return InputGrads(*(call.q.new_empty(0) if x is None else torch.empty_like(x) for x in inputs))


_SCHEMA_TYPES = {
    Tensor: "Tensor",
    Tensor | None: "Tensor?",
    int: "int",
    bool: "bool",
    str: "str",
    float: "float",
    float | None: "float?",
    torch.dtype | None: "ScalarType?",
}


def schema() -> str:
    """Return the schema of an op that takes a Call: its arguments in the order of `flatten`."""
    kinds: dict[str, Any] = {field.name: field.type for field in fields(Call) if field.name != "options"}
    kinds |= Options.__annotations__
    return ", ".join(f"{_SCHEMA_TYPES[kind]} {name}" for name, kind in kinds.items())


class Lead(NamedTuple):
    """The leading dimensions of a call: (*batch, *heads) of the output, (*states, *key_heads) of the state."""

    batch: tuple[int, ...]
    heads: tuple[int, ...]
    key_heads: tuple[int, ...]
    states: tuple[int, ...]


def bind(
    inputs: Inputs,
    cu_seqlens: tuple[Tensor, Tensor] | None,
    dropout_seed: Tensor | None,
    options: Options,
    number: float,
    lead: Lead,
) -> Call:
    """Return checked inputs in the canonical layout. `number` is the scale, which a tensor among the inputs multiplies."""
    query, key, value, attn_mask, scale, log_decay, initial_state = inputs
    batch, heads, key_heads, states = lead
    dtype = torch.float64 if torch.float64 in (query.dtype, key.dtype, value.dtype) else torch.float32
    key_mask = None if attn_mask is None else _key_mask(attn_mask, batch, key.shape[-2])
    if key_mask is not None and key_heads != heads and key_mask.shape[1] != 1:
        # each query head has another mask, so it needs another sum over keys
        repeats = heads[0] // key_heads[0]
        key, value = (x.repeat_interleave(repeats, -3) for x in (key, value))
        if log_decay is not None and log_decay.dim() > 1 and log_decay.shape[-2] == key_heads[0]:
            log_decay = log_decay.repeat_interleave(repeats, -2)
        key_heads = heads
    return Call(
        _canonical(query, batch, heads),
        _canonical(key, batch, key_heads),
        _canonical(value, batch, key_heads),
        # summed over heads in full precision where one scale serves them all
        scale.to(dtype).expand(prod(heads)) if isinstance(scale, Tensor) else None,
        None if log_decay is None else _per_token(log_decay.to(dtype), batch, key_heads, key.shape[-2], key_mask),
        key_mask,
        None if cu_seqlens is None else cu_seqlens[0],
        None if cu_seqlens is None else cu_seqlens[1],
        None if initial_state is None else _canonical(initial_state, states, key_heads),
        dropout_seed,
        options._replace(
            scale=number * 1.0,
            dropout_p=options.dropout_p * 1.0,
            out_dtype=output_dtype(value, dtype) if log_decay is None else dtype,
        ),
    )


def autocast_dtype(device: str, dtype: torch.dtype) -> torch.dtype | None:
    """Return the dtype that autocast lowers outputs to where sums are of this dtype, or None. Outputs in fp64 stay."""
    known = device == "cpu" or torch.amp.is_autocast_available(device)
    lowered = dtype == torch.float32 and known and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if lowered else None


def output_dtype(value: Tensor, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the output. As in F.scaled_dot_product_attention, autocast lowers it."""
    return autocast_dtype(value.device.type, dtype) or value.dtype


def _canonical(x: Tensor, batch: tuple[int, ...], heads: tuple[int, ...]) -> Tensor:
    """Reshape (..., a, b) to (B, H, a, b), as a view wherever one exists."""
    if len(batch) == 1 and x.dim() == 4 and x.shape[:2] == (*batch, *heads):
        return x
    x = x.expand(*batch, *heads, *x.shape[-2:])
    return x if len(batch) == len(heads) == 1 else x.reshape(prod(batch), prod(heads), *x.shape[-2:])


def _key_mask(attn_mask: Tensor, batch: tuple[int, ...], keys: int) -> Tensor:
    """Reshape (..., 1, Nk) to (B, heads or 1, Nk)."""
    mask = attn_mask[..., 0, :] if attn_mask.dim() > 1 else attn_mask
    heads = mask.shape[-2] if mask.dim() > 1 else 1
    lead = mask.shape[:-2]
    mask = mask.reshape(*[1] * (len(batch) - len(lead)), *lead, heads, mask.shape[-1])
    return mask.expand(*batch, heads, keys).reshape(prod(batch), heads, keys)


def _per_token(
    x: Tensor, batch: tuple[int, ...], heads: tuple[int, ...], tokens: int, key_mask: Tensor | None
) -> Tensor:
    """Reshape (..., Hkv, N) to (B, Hkv, N), with 0 where a key does not count."""
    x = x.expand(*batch, *heads, tokens).reshape(prod(batch), prod(heads), tokens)
    return x if key_mask is None else torch.where(key_mask, x, 0)
