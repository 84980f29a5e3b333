"""FastmaxAttention: nn.MultiheadAttention with Fastmax instead of softmax."""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from fastmax.api import fastmax_attention
from fastmax.call import accumulation_dtype, normalization
from fastmax.core import normalized
from fastmax.nn import decoding, masks, projection, sharded
from fastmax.nn.decoding import State
from fastmax.nn.gate import MEMORY, ForgetGate
from fastmax.nn.options import LayerOptions, check_qk_head_dim
from fastmax.nn.rotary import rotate
from fastmax.nn.sharded import SharesSequence
from fastmax.reference import attention_matrix
from fastmax.state import FastmaxState, WindowState
from fastmax.window import windowed_softmax


class FastmaxAttention(nn.MultiheadAttention, SharesSequence):
    """Multi-head Fastmax attention, in time and memory linear in the sequence length.

        >>> layer = FastmaxAttention(64, 4, batch_first=True, rotary=True, decay="gated")
        >>> x = torch.randn(2, 100, 64)
        >>> layer(x, x, x, is_causal=True, need_weights=False)[0].shape
        torch.Size([2, 100, 64])

    Constructor, parameters, `forward` and results are those of torch.nn.MultiheadAttention, and state_dicts load from one
    into the other, unless `num_kv_heads`, `qk_head_dim` or `learn_scale` asks for other parameters. What differs:

    - A mask may be causal, hide keys from all queries, or both, given in any form that MultiheadAttention takes;
      any other mask is a ValueError.
    - `is_causal=True` needs no `attn_mask`; if there is one, it is taken to be the causal mask and not looked at.
    - A query that sees no key gives zeros (then the output projection), not NaN.
    - Nested tensors are taken where nn.TransformerEncoder makes them: self attention, `batch_first`, no weights, no masks.

    Args:
        dropout: of the attention, in training; see `dropout_mode`. (Weights that are returned are those without dropout.)
        order: the degree of the polynomial, 1 to 4.
        scale: multiplies s = q̂ . k̂; default `layer_scale`. An odd order with a larger scale can have negative weights,
            and denominators near zero.
        learn_scale: learn one scale per head, from `scale` on: a parameter `head_scale` of shape (num_heads,). Leave it out
            of weight decay.
        normalize: standardize each query and key, which keeps s within bounds; "rms" divides by the root mean square alone.
        decay: forget, in self attention: "gated" by a decay that each token and head makes of the input, "learned" by one
            per head; a child module `gate`. With rotary positions it is what lets Fastmax learn as well as softmax or better.
            Without causality the weights fade in both directions.
        memory: where the decays start: head by head from a reach of 2^memory[0] tokens to one of 2^memory[1].
        rotary: rotate positions into queries and keys, after they are standardized. Extra keys (`add_bias_kv`,
            `add_zero_attn`) have no position. Needs an even head dimension.
        rotary_base: see `fastmax.nn.rotary.rotate`.
        num_kv_heads: heads of keys and values, each shared by num_heads / num_kv_heads query heads. With E_kv =
            num_kv_heads * head_dim, in_proj_weight is then (embed_dim + 2 E_kv, embed_dim), k_proj_weight (E_kv, kdim),
            v_proj_weight (E_kv, vdim), in_proj_bias (embed_dim + 2 E_kv,), bias_k and bias_v (1, 1, E_kv).
        qk_head_dim: channels of each head's queries and keys, default head_dim = embed_dim / num_heads, which values always
            have. A state has C(qk_head_dim + order, order) features, so for heads of 128 take 32: `fastmax.cost` has the
            numbers. Weights and biases that make queries and keys then have num_heads * qk_head_dim and
            num_kv_heads * qk_head_dim rows.
        dropout_mode: "standard", "1d" or "quadratic", see `fastmax_attention`.
        backend: "auto" or the name of one.
        window: W. Compute softmax over a sliding window instead of Fastmax, in self attention: each token sees the tokens
            less than W places away, itself included. Queries and keys are not normalized, `scale` is 1 / sqrt(D) by default,
            and `dropout` drops weights: all as in nn.MultiheadAttention. `order`, `normalize`, `dropout_mode` and `backend`
            have no effect; `decay` and `learn_scale` are refused.
    """

    head_scale: nn.Parameter | None
    num_kv_heads: int
    qk_head_dim: int

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        order: int = 2,
        scale: float | None = None,
        learn_scale: bool = False,
        normalize: bool | str = True,
        rotary: bool = False,
        rotary_base: float = 10000.0,
        decay: str | None = None,
        memory: tuple[float, float] = MEMORY,
        num_kv_heads: int | None = None,
        qk_head_dim: int | None = None,
        dropout_mode: str = "quadratic",
        backend: str = "auto",
        window: int | None = None,
    ) -> None:
        options = LayerOptions(
            order, scale, learn_scale, normalize, rotary, rotary_base, decay, memory, dropout_mode, backend, window
        )
        if num_heads > 0 and embed_dim % num_heads:
            raise ValueError(f"embed_dim must be divisible by num_heads, got {embed_dim} and {num_heads}")
        if num_kv_heads is not None and (num_kv_heads < 1 or num_heads % num_kv_heads):
            raise ValueError(f"num_kv_heads must divide num_heads = {num_heads}, got {num_kv_heads}")
        check_qk_head_dim(qk_head_dim)
        super().__init__(
            embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype
        )
        self.num_kv_heads, self.qk_head_dim = num_kv_heads or num_heads, qk_head_dim or self.head_dim
        if (self.num_kv_heads, self.qk_head_dim) != (num_heads, self.head_dim):
            self._resize_projections()
        self._configure(options)

    @classmethod
    def from_attention(cls, module: nn.MultiheadAttention, options: LayerOptions | None = None) -> Self:
        """Return a layer with the parameters (the same objects), hooks and training mode of `module`."""
        layer = cls.__new__(cls)
        layer.__dict__.update(module.__dict__)
        for registry in ("_parameters", "_buffers", "_modules"):  # so that what is added here does not appear there
            layer.__dict__[registry] = module.__dict__[registry].copy()
        layer.num_kv_heads = getattr(module, "num_kv_heads", module.num_heads)
        layer.qk_head_dim = getattr(module, "qk_head_dim", module.head_dim)
        layer._configure(options or LayerOptions())
        return layer

    def _configure(self, options: LayerOptions) -> None:
        if options.rotary and self.qk_head_dim % 2:
            raise ValueError(f"rotary needs an even head dimension, got {self.qk_head_dim}")
        self.fused_path_guard = _fused_path_guard()
        self.options = options
        self.scale = options.scale_of(self.qk_head_dim)
        start = self.out_proj.weight.new_full((self.num_heads,), self.scale)
        self.register_parameter("head_scale", nn.Parameter(start) if options.learn_scale else None)
        if options.window is not None:
            self._check_keys_have_places("window")
        self.gate: ForgetGate | None = None
        if options.decay is not None:
            self._check_keys_have_places("decay")
            self.gate = ForgetGate(
                self.embed_dim,
                self.num_kv_heads,
                options.memory,
                kind=options.decay,
                device=start.device,
                dtype=start.dtype,
            )

    def _check_keys_have_places(self, option: str) -> None:
        """Refuse an option that needs the distance from a key to a query where keys have no place in the sequence."""
        if self.bias_k is not None or self.add_zero_attn:
            raise ValueError(
                f"{option} is not supported with add_bias_kv and add_zero_attn, whose keys have no place in the sequence"
            )
        if self.kdim != self.embed_dim:
            raise ValueError(
                f"{option} is for self attention: kdim must be embed_dim = {self.embed_dim}, got {self.kdim}"
            )

    @property
    def any_scale(self) -> float | Tensor:
        """Return the number, or the learned one per head."""
        return self.scale if self.head_scale is None else self.head_scale

    @property
    def _projected_dims(self) -> tuple[int, int, int]:
        """Return the channels of all heads' queries, keys and values."""
        q, k = (heads * self.qk_head_dim for heads in (self.num_heads, self.num_kv_heads))
        return q, k, self.num_kv_heads * self.head_dim

    def _resize_projections(self) -> None:
        q_dim, k_dim, v_dim = self._projected_dims
        shapes = {
            "in_proj_weight": (q_dim + k_dim + v_dim, self.embed_dim),
            "q_proj_weight": (q_dim, self.embed_dim),
            "k_proj_weight": (k_dim, self.kdim),
            "v_proj_weight": (v_dim, self.vdim),
            "in_proj_bias": (q_dim + k_dim + v_dim,),
            "bias_k": (1, 1, k_dim),
            "bias_v": (1, 1, v_dim),
        }
        for name, shape in shapes.items():
            if getattr(self, name) is not None:
                setattr(self, name, nn.Parameter(self.out_proj.weight.new_empty(shape)))
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        """Initialize like nn.MultiheadAttention, from the same random numbers."""
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                nn.init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            nn.init.zeros_(self.in_proj_bias)
            nn.init.zeros_(self.out_proj.bias)
        for extra in (self.bias_k, self.bias_v):
            if extra is not None:
                nn.init.xavier_normal_(extra)
        head_scale = getattr(self, "head_scale", None)  # not yet there when the base class initializes
        if head_scale is not None:
            nn.init.constant_(head_scale, self.scale)
        gate = getattr(self, "gate", None)
        if gate is not None:
            gate.reset_parameters()

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        state: State | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend as nn.MultiheadAttention does: (L, B, E), or (B, L, E) if batch_first, or (L, E) unbatched.

        `need_weights` returns the matrix of weights too, (B, L, S) or, unless averaged, (B, num_heads, L, S), at a cost of
        O(L S) time and memory. It is on by default only because it is in nn.MultiheadAttention: turn it off for long
        sequences. (nn.TransformerEncoderLayer and nn.TransformerDecoderLayer do.)

        With a `state` from `new_state`, these tokens continue those in it and are added to it. The results are those of
        causal attention over the whole text, however it is cut into pieces. Positions continue, too; a token that
        `key_padding_mask` hides takes none. It needs `is_causal` and no weights.
        """
        if self.sequence is not None:
            sharded.check(query, need_weights, attn_mask, state)
        if query.is_nested and query is key is value and self.batch_first and not need_weights and state is None:
            return self._nested(query, key_padding_mask, attn_mask, is_causal), None
        projection.check(query, key, value, (self.embed_dim, self.kdim, self.vdim), self.batch_first)
        if (self.gate is not None or self.options.window is not None) and not _are_same(query, key):
            option = "decay" if self.options.window is None else "window"
            raise ValueError(
                f"a layer with a {option} is for self attention: query and key must be the same tensor, got two. For cross "
                f"attention, make it without a {option} (replace_attention gives options to chosen `layers`)"
            )
        if state is not None:
            decoding.check(self, state, need_weights, is_causal)
        batch = projection.batch_size(query, self.batch_first)
        # First, because reading a mask breaks the graph of a compiler.
        mask, is_causal = masks.recognise(
            attn_mask,
            key_padding_mask,
            is_causal,
            batch=batch,
            num_heads=self.num_heads,
            queries=projection.length(query, self.batch_first),
            keys=projection.length(key, self.batch_first),
        )
        q, k, v = self._projected(query, key, value)
        if self.options.rotary:
            q_at, k_at = self._positions(q, k, mask, state)
            q, k = self._rotated(q, q_at), self._rotated(k, k_at)
        if self.options.window is not None:
            o, weights = self._in_window(self.options.window, q, k, v, mask, is_causal, state, need_weights)
        else:
            o, weights = self._by_fastmax(q, k, v, mask, is_causal, state, self._log_decay(key), need_weights)
        output = self.out_proj(projection.merge_heads(o, batch is not None, self.batch_first))
        if weights is None:
            return output, None
        weights = weights.mean(1) if average_attn_weights else weights
        return output, weights.squeeze(0) if batch is None else weights

    def _by_fastmax(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        state: State | None,
        log_decay: Tensor | None,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output of the heads, (B, num_heads, L, D), and the weights, (B, num_heads, L, S), if needed."""
        extra, values = self._extra_keys()
        if extra:
            q, k, v, mask = projection.prepend_extra_keys(q, k, v, mask, extra, values, is_causal)
        hidden = len(extra) if is_causal else 0
        options: dict[str, Any] = {
            "order": self.options.order,
            "scale": self.any_scale,
            "normalize": False if self.options.rotary else self.options.normalize,
            "enable_gqa": True,
        }
        dropout: dict[str, Any] = {}
        if self.training and self.dropout > 0:
            dropout = {"dropout_p": self.dropout, "dropout_mode": self.options.dropout_mode}
        if state is not None:
            assert isinstance(state, FastmaxState)  # decoding.check
            o = decoding.attend(state, q, k, v, mask, log_decay, dropout, options)
        else:
            run = {"is_causal": is_causal, "log_decay": log_decay, "backend": self.options.backend}
            attend = self._attend if self.sequence is None else self.sequence.attend
            o = attend(q, k, v, mask, **run, **options, **dropout)
        o = o[:, :, hidden:]
        if not need_weights:
            return o, None
        dtype = accumulation_dtype(q.dtype, k.dtype)
        with torch.autocast(q.device.type, enabled=False):
            weights = self._matrix(q.to(dtype), k.to(dtype), mask, is_causal, log_decay=log_decay, **options)
        return o, weights.to(v.dtype)[:, :, hidden:].roll(-len(extra), -1)

    def _in_window(
        self,
        window: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        state: State | None,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the same two for softmax over the last tokens."""
        if mask is not None and mask.shape[1] != 1:
            raise ValueError("a layer with a window needs one mask for all heads: a hidden token takes no place in it")
        key_mask = None if mask is None else mask[:, 0, 0].expand(k.shape[0], -1)
        q, k = q.to(v.dtype), k.to(v.dtype)  # rotated ones are of higher precision
        dropout_p = self.dropout if self.training else 0.0
        if state is not None:
            assert isinstance(state, WindowState)  # decoding.check
            return state.step(q, k, v, key_mask, dropout_p=dropout_p), None
        options: dict[str, Any] = {"window": window, "is_causal": is_causal, "scale": self.scale}
        o = windowed_softmax(q, k, v, key_mask, **options, dropout_p=dropout_p)
        if not need_weights:
            return o, None
        units = torch.eye(k.shape[2], dtype=v.dtype, device=v.device).expand(*k.shape[:3], -1)
        return o, windowed_softmax(q, k, units, key_mask, **options)

    def new_state(
        self, batch: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> State:
        """Return a state without tokens, with the options of this layer, on its device.

        It is a `FastmaxState` (with the scale itself, if it is learned), in fp32 at least; for a layer with a window, a
        `WindowState` in the dtype of the layer.
        """
        return decoding.new_state(self, batch, device, dtype)

    def step(self, x: Tensor, state: State, key_padding_mask: Tensor | None = None) -> Tensor:
        """Decode a token, or a few, (B, n, E) in the layout of the layer: causal self attention that goes on from `state`."""
        o, _ = self(x, x, x, key_padding_mask, need_weights=False, is_causal=True, state=state)
        output: Tensor = o
        return output

    def _nested(self, x: Tensor, key_padding_mask: Tensor | None, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
        if key_padding_mask is not None or attn_mask is not None:
            raise ValueError("a nested tensor takes no mask, only is_causal")
        padded, padding, lengths = projection.nested_to_padded(x)
        o, _ = self(padded, padded, padded, padding, need_weights=False, is_causal=is_causal)
        return projection.padded_to_nested(o, lengths, x.layout)

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project to heads, (B, heads, L, D) each."""
        separate = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        packed = self.in_proj_weight, self.in_proj_bias
        q, k, v = projection.project(query, key, value, self._projected_dims, separate, *packed)
        return (
            projection.split_heads(q, self.num_heads, self.batch_first),
            projection.split_heads(k, self.num_kv_heads, self.batch_first),
            projection.split_heads(v, self.num_kv_heads, self.batch_first),
        )

    # What a layer with the same projections, positions and gate around another attention replaces.
    _attend: Callable[..., Tensor] = staticmethod(fastmax_attention)
    _matrix: Callable[..., Tensor] = staticmethod(attention_matrix)

    def _log_decay(self, key: Tensor) -> Tensor | None:
        """Return the decays, (B, num_kv_heads, L) or (num_kv_heads, 1)."""
        if self.gate is None:
            return None
        if key.dim() == 3 and not self.batch_first:
            key = key.transpose(0, 1)
        log_decay: Tensor = self.gate(key)
        return log_decay

    def _positions(
        self, q: Tensor, k: Tensor, mask: Tensor | None, state: State | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the positions of queries and keys, None where they count from 0."""
        if state is not None:
            positions = decoding.positions(state, mask, k.shape[2])
            return positions, positions
        if self.sequence is None:
            return None, None
        lengths = q.shape[2], k.shape[2]
        starts = self.sequence.starts(lengths, q.device)
        of_q, of_k = (start + torch.arange(n, device=q.device) for start, n in zip(starts, lengths, strict=True))
        return of_q, of_k

    def _standardized(self, x: Tensor) -> Tensor:
        how = "none" if self.options.window is not None else normalization(self.options.normalize)
        return normalized(x.to(accumulation_dtype(x.dtype)), how)

    def _rotated(self, x: Tensor, positions: Tensor | None) -> Tensor:
        return rotate(self._standardized(x), base=self.options.rotary_base, positions=positions)

    def _extra_keys(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the learned and the zero key and their values, (1, heads, 1, D) each."""
        keys, values = [], []
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (projection.split_heads(x, self.num_kv_heads, True) for x in (self.bias_k, self.bias_v))
            keys.append(self._standardized(k) if self.options.rotary else k)
            values.append(v)
        if self.add_zero_attn:
            zeros = self.out_proj.weight.new_zeros(1, self.num_kv_heads, 1, max(self.qk_head_dim, self.head_dim))
            keys.append(zeros[..., : self.qk_head_dim])
            values.append(zeros[..., : self.head_dim])
        return keys, values

    def extra_repr(self) -> str:
        shown: dict[str, Any] = {"embed_dim": self.embed_dim, "num_heads": self.num_heads}
        if self.options.window is None:
            shown["order"] = self.options.order
        else:
            shown["window"] = self.options.window
        shown |= {"learn_scale": True} if self.options.learn_scale else {"scale": round(self.scale, 4)}
        sizes = {"num_kv_heads": self.num_heads, "qk_head_dim": self.head_dim}
        for name, default in {**sizes, "dropout": 0.0, "batch_first": False}.items():
            if getattr(self, name) != default:
                shown[name] = getattr(self, name)
        for name in ("normalize", "rotary", "rotary_base", "decay", "memory", "dropout_mode", "backend"):
            if getattr(self.options, name) != getattr(LayerOptions, name):
                shown[name] = getattr(self.options, name)
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())


def _are_same(query: Tensor, key: Tensor) -> bool:
    """Return True if both are one tensor, or hold the same values: activation checkpointing and FSDP copy each input.

    Values are compared only if the call would otherwise be refused, and not while a compiler traces it.
    """
    if key is query:
        return True
    if torch.compiler.is_compiling() or key.is_meta:
        return False
    return key.is_set_to(query) or (key.dtype == query.dtype and torch.equal(key, query))


def _fused_path_guard() -> nn.Module:
    """Return a child that keeps nn.TransformerEncoderLayer off its fused softmax kernel, which never calls `self_attn`.

    The encoder layer takes that path only if no module inside it has a hook. The hook sits on a child, because a layer made
    by `from_attention` shares its hooks with the original, which must keep its fused path.
    """
    guard = nn.Identity()
    guard.register_forward_pre_hook(_do_nothing)
    return guard


def _do_nothing(_module: nn.Module, _inputs: Any) -> None:
    pass
