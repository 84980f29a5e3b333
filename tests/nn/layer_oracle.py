"""FastmaxAttention by its definition, with the whole matrix in memory: what the tests of layers compare against."""

import torch
from torch import Tensor, nn

from fastmax import similarity, standardize
from fastmax.core import rms_normalize
from fastmax.nn import FastmaxAttention
from fastmax.nn.rotary import rotate


def oracle(m: FastmaxAttention, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """The layer by its definition, for (B, L, E); `allowed` broadcasts to (B, H, L, S). Extra keys at the end."""
    heads, D, Dv = m.num_kv_heads, m.qk_head_dim, m.head_dim
    sizes = [m.num_heads * D, heads * D, heads * Dv]
    weights = (
        (m.q_proj_weight, m.k_proj_weight, m.v_proj_weight)
        if m.in_proj_weight is None
        else m.in_proj_weight.split(sizes)
    )
    biases = (0, 0, 0) if m.in_proj_bias is None else m.in_proj_bias.split(sizes)
    q, k, v = (x @ w.T + b for x, w, b in zip((query, key, value), weights, biases, strict=True))
    q, k, v = (x.unflatten(-1, (-1, d)).transpose(1, 2) for x, d in zip((q, k, v), (D, D, Dv), strict=True))
    how = {True: standardize, "rms": rms_normalize, False: lambda x: x}[m.options.normalize]
    q, k = how(q), how(k)
    if m.options.rotary:
        q, k = (rotate(x, base=m.options.rotary_base) for x in (q, k))
    allowed = allowed.expand(len(query), m.num_heads, q.shape[2], k.shape[2])
    extra = []
    if m.bias_k is not None and m.bias_v is not None:
        extra.append((standardize(m.bias_k.reshape(1, heads, 1, D)), m.bias_v.reshape(1, heads, 1, Dv)))
    extra += [(torch.zeros(1, heads, 1, D), torch.zeros(1, heads, 1, Dv))] if m.add_zero_attn else []
    for extra_k, extra_v in extra:
        k = torch.cat([k, extra_k.expand(len(k), -1, -1, -1)], 2)
        v = torch.cat([v, extra_v.expand(len(v), -1, -1, -1)], 2)
        allowed = nn.functional.pad(allowed, (0, 1), value=True)
    k, v = (x.repeat_interleave(m.num_heads // heads, 1) for x in (k, v))
    scale = m.scale if m.head_scale is None else m.head_scale[:, None, None]
    f = similarity(scale * q @ k.mT, m.options.order) * allowed
    if m.gate is not None:
        log_decay = m.gate(key).expand(len(key), heads, -1).repeat_interleave(m.num_heads // heads, 1)
        c = torch.where(allowed.any(-2), log_decay, 0).cumsum(-1)  # what no query sees decays nothing
        f = f * (-(c.unsqueeze(-1) - c.unsqueeze(-2)).abs()).exp()
    g = f.sum(-1, keepdim=True)
    a = torch.where(g == 0, 0.0, f / g)
    return m.out_proj((a @ v).transpose(1, 2).flatten(-2)), a
