"""Decoding by a layer: a state made with the layer's own options, and attention that goes on from it."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fastmax.api import fastmax_attention
from fastmax.call import accumulation_dtype
from fastmax.state import FastmaxState, WindowState, checks

if TYPE_CHECKING:
    from fastmax.nn.attention import FastmaxAttention


State = FastmaxState | WindowState
"""The sum of a Fastmax layer, or the last tokens of a layer with a window."""


def new_state(
    layer: "FastmaxAttention", batch: int, device: torch.device | str | None, dtype: torch.dtype | None
) -> State:
    """Return a state without tokens, with the options of the layer."""
    _may_decode(layer)
    weight = layer.out_proj.weight
    device = weight.device if device is None else device
    if layer.options.window is not None:
        return WindowState.empty(
            batch,
            layer.num_kv_heads,
            layer.qk_head_dim,
            layer.head_dim,
            window=layer.options.window,
            scale=layer.scale,
            dtype=weight.dtype if dtype is None else dtype,
            device=device,
        )
    return FastmaxState.empty(
        batch,
        layer.num_kv_heads,
        layer.qk_head_dim,
        layer.head_dim,
        order=layer.options.order,
        scale=layer.any_scale,
        normalize=_normalize(layer),
        dtype=accumulation_dtype(weight.dtype) if dtype is None else dtype,
        device=device,
    )


def check(layer: "FastmaxAttention", state: State, need_weights: bool, is_causal: bool) -> None:
    """Refuse a call that no state serves, and a state that would give other results than the layer does."""
    _may_decode(layer)
    kind = FastmaxState if layer.options.window is None else WindowState
    if not isinstance(state, kind):
        raise TypeError(f"state must be a {kind.__name__}, as layer.new_state returns one, got {type(state).__name__}")
    if need_weights:
        raise ValueError("a state keeps no keys, so it has no weights: need_weights must be False")
    if not is_causal:
        raise ValueError("attention with a state is causal: is_causal must be True")
    expected = {"num_kv_heads": layer.num_kv_heads, "head_dim": layer.qk_head_dim, "value_dim": layer.head_dim}
    if layer.options.window is not None:
        expected |= {"window": layer.options.window}
    else:
        expected |= {"order": layer.options.order, "normalize": _normalize(layer)}
    got = {name: getattr(state, name) for name in expected}
    if state.scale is not layer.any_scale:  # comparing tensors would wait for the device
        expected["scale"], got["scale"] = _plain(layer.any_scale), _plain(state.scale)
    checks.same("with the layer they are for, as those of layer.new_state do", expected, got)


def positions(state: State, mask: Tensor | None, tokens: int) -> Tensor:
    """Return positions that continue the state's, (B, 1, N). A token that `padding`, (B, 1, 1, N), hides takes no place."""
    ahead = torch.arange(tokens, device=state.device) if mask is None else mask[:, 0, 0].cumsum(-1) - 1
    return (state.tokens[:, None] + ahead).unsqueeze(1)


def attend(
    state: FastmaxState,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    log_decay: Tensor | None,
    dropout: dict[str, Any],
    options: dict[str, Any],
) -> Tensor:
    """Add tokens to the state and return each query's output over the tokens up to its own. `mask` is of key padding."""
    if q.shape[2] != k.shape[2]:
        raise ValueError(
            f"a state is for self attention: query and key must be the same tokens, got {q.shape[2]} and {k.shape[2]}"
        )
    if not dropout:
        return state.step(q, k, v, None if mask is None else mask[:, 0, 0], log_decay)
    return fastmax_attention(q, k, v, mask, is_causal=True, log_decay=log_decay, state=state, **dropout, **options)


def _may_decode(layer: "FastmaxAttention") -> None:
    if layer.options.window is None and type(layer)._attend is not fastmax_attention:
        raise ValueError(f"{type(layer).__name__} is no sum over keys, so it has no state")
    if layer.bias_k is not None or layer.add_zero_attn:
        raise ValueError("add_bias_kv and add_zero_attn are not supported while decoding")


def _normalize(layer: "FastmaxAttention") -> bool | str:
    """Return the normalization that is left to the state: rotated tokens are normalized before."""
    return False if layer.options.rotary else layer.options.normalize


def _plain(scale: float | Tensor | None) -> Any:
    return scale.tolist() if isinstance(scale, Tensor) else scale
