"""The attention function that transformers calls: Fastmax by the options of the module and under its cache."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from fastmax.api import fastmax_attention, fastmax_varlen_attention
from fastmax.integrations.transformers import persistence, record, refusals
from fastmax.integrations.transformers.cache_layer import FastmaxLayer, empty_state
from fastmax.integrations.transformers.modules import is_rotary
from fastmax.integrations.transformers.options import AttentionOptions, parameters_of
from fastmax.nn.options import layer_scale
from fastmax.window import windowed_softmax


def attend(
    order: int,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Run Fastmax as transformers' attention function: (B, Hq, Nq, D), (B, Hkv, Nk, D or Dv) -> (B, Nq, Hq, Dv).

    `order` is that of modules that `configure` has not seen. From `module` on the signature is transformers'.
    """
    record.note(module, record.REFUSED)  # until the cache says otherwise
    refusals.arguments(module, more)
    if more.get("sliding_window") is not None:
        if attention_mask is not None and attention_mask.dim() != 4:
            refusals.mask_shape(tuple(attention_mask.shape), attention_mask.dtype)
        record.note(module, record.SLIDING)
        result: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal, **more
        )
        return result
    options = _options(module, order)
    keys, causal = _mask(module, attention_mask, is_causal)
    cached = FastmaxLayer.of(key, value)
    if options.window is not None:
        record.note(module, record.WINDOW)
        if cached is not None:
            key, value, keys = cached.extend_window(key, value, keys, options.window)
        o = windowed_softmax(
            query, key, value, keys, window=options.window, is_causal=causal, scale=scaling, dropout_p=dropout
        )
        return o.transpose(1, 2).contiguous(), None
    child = parameters_of(module)
    log_decay = None if child is None else child.log_decay(value)
    if child is not None and child.narrow is not None:
        query, key = child.narrow(query, key)
    chosen: dict[str, Any] = {
        "order": options.order,
        "scale": _scale(options, query.shape[-1], scaling)
        if child is None or child.head_scale is None
        else child.head_scale,
        "normalize": options.normalize,
        "enable_gqa": True,
        "backend": options.backend,
    }
    drop: dict[str, Any] = {"dropout_p": dropout, "dropout_mode": options.dropout_mode} if dropout else {}
    if more.get("cu_seq_lens_q") is not None:
        boundaries = more["cu_seq_lens_q"], more["cu_seq_lens_k"]
        o = _packed(query, key, value, keys, causal, boundaries, log_decay, {**chosen, **drop})
    elif attention_mask is not None and attention_mask.dim() == 2 and attention_mask.shape[0] == 0 != query.shape[0]:
        refusals.packed()
    elif cached is None:
        o = _whole(query, key, value, keys, causal, log_decay, {**chosen, **drop})
    elif causal:
        o = cached.attend(query, key, value, keys, log_decay, drop, chosen)
    else:
        raise ValueError("FastmaxCache is for causal self attention: give cross attention a separate DynamicCache")
    record.note(module, record.FASTMAX)
    return o.transpose(1, 2).contiguous(), None


def _options(module: nn.Module, order: int) -> AttentionOptions:
    child = parameters_of(module)
    return child.options if child is not None else AttentionOptions(order, _default_normalize(module))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _default_normalize(module: nn.Module) -> bool | str:
    """Return the normalization of a module that was not configured."""
    config = getattr(module, "config", None)
    if config is not None:
        persistence.check_not_configured(config)
    return "rms" if is_rotary(type(module)) else True


def _scale(options: AttentionOptions, head_dim: int, scaling: float | None) -> float:
    """Return the scale of a module's products. Normalized tokens have the size that 1 / sqrt(D) is made for.

    The module's own `scaling` serves without normalization only: some modules apply it to the queries beforehand and pass 1.
    """
    if options.scale is not None:
        return options.scale
    return scaling if options.normalize is False and scaling is not None else layer_scale(options.order, head_dim)


def _mask(module: nn.Module, mask: Tensor | None, is_causal: bool | None) -> tuple[Tensor | None, bool]:
    """Return the keys that count, (B, Nk), and causality, from the result of the mask function (see masks.py)."""
    if mask is None or mask.shape[0] == 0:
        return None, bool(getattr(module, "is_causal", True)) if is_causal is None else is_causal
    if mask.dtype != torch.bool or not (mask.dim() == 2 or (mask.dim() == 4 and mask.shape[1] == mask.shape[2] == 1)):
        refusals.mask_shape(tuple(mask.shape), mask.dtype)
    return (mask, True) if mask.dim() == 2 else (mask[:, 0, 0], False)


def _packed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keys: Tensor | None,
    causal: bool,
    boundaries: tuple[Tensor, Tensor],
    log_decay: Tensor | None,
    options: dict[str, Any],
) -> Tensor:
    """Attend within each sequence of one row."""
    if query.shape[0] != 1:
        raise ValueError(f"with cu_seq_lens_q the batch must be 1, all sequences in one row, got {query.shape[0]}")
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    mask = None if keys is None else keys[:, None]
    decay = log_decay[0] if log_decay is not None and log_decay.dim() == 3 else log_decay
    o: Tensor = fastmax_varlen_attention(q, k, v, *boundaries, mask, is_causal=causal, log_decay=decay, **options)
    return o.transpose(0, 1).unsqueeze(0)


def _whole(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keys: Tensor | None,
    causal: bool,
    log_decay: Tensor | None,
    options: dict[str, Any],
) -> Tensor:
    """Attend with all keys present. Causal queries are those of the last keys, as transformers aligns them."""
    past = key.shape[2] - query.shape[2] if causal else 0
    if past < 0:
        raise ValueError(f"causal attention needs a key for every query, got {query.shape[2]} and {key.shape[2]}")
    before = None
    if past and (query.shape[2] > 1 or log_decay is not None):  # (one query sees all keys, unless they fade)
        decays = None if log_decay is None else log_decay.expand(*key.shape[:3])
        state = empty_state(query, key, value, options)
        state.update(
            key[:, :, :past],
            value[:, :, :past],
            None if keys is None else keys[:, :past],
            None if decays is None else decays[:, :, :past],
        )
        before, key, value = state.tensor, key[:, :, past:], value[:, :, past:]
        keys = None if keys is None else keys[:, past:]
        log_decay = None if decays is None else decays[:, :, past:]
        past = 0
    o: Tensor = fastmax_attention(
        query,
        key,
        value,
        None if keys is None else keys[:, None, None],
        is_causal=bool(causal and past == 0),
        initial_state=before,
        log_decay=log_decay,
        **options,
    )
    return o
