"""Exactness: error against fp64 over N, the gradient bound, negative weights of odd orders, memory saved for backward."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from fastmax import core, fastmax_attention
from fastmax.core import normalized, similarity

HEADS, HEAD_DIM = 2, 32
LAST = 64
"""Queries at the end of the sequence whose outputs are compared: an oracle of all would be N x N."""


def errors(tokens: Sequence[int], seed: int) -> list[dict[str, Any]]:
    """Return relative errors of the last queries, fp32 against fp64: causal, orders 1 and 2, and softmax."""
    rows = []
    for n in tokens:
        torch.manual_seed(seed)
        q, k, v = (torch.randn(1, HEADS, n, HEAD_DIM) for _ in range(3))
        wide = q.double()[..., -LAST:, :], k.double(), v.double()
        visible = _visible(n)
        row: dict[str, Any] = {"tokens": n, "errors": {}}
        for order in (1, 2):
            scale = core.default_scale(order, HEAD_DIM)
            oracle = _definition(*wide, visible, order, scale)
            results = {
                f"fastmax{order}": fastmax_attention(q, k, v, is_causal=True, order=order)[..., -LAST:, :],
                f"fastmax{order}, definition": _definition(q[..., -LAST:, :], k, v, visible, order, scale),
            }
            row["errors"] |= {name: _relative(o, oracle) for name, o in results.items()}
        oracle = scaled_dot_product_attention(*wide, attn_mask=visible)
        softmax = scaled_dot_product_attention(q, k, v, is_causal=True)[..., -LAST:, :]
        row["errors"]["softmax"] = _relative(softmax, oracle)
        rows.append(row)
    return rows


def _visible(tokens: int) -> Tensor:
    """Return which keys the last queries see, (LAST, N)."""
    last = min(LAST, tokens)
    return torch.arange(tokens) <= torch.arange(tokens - last, tokens)[:, None]


def _definition(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, order: int, scale: float) -> Tensor:
    q, k = normalized(q, "standardize"), normalized(k, "standardize")
    weights = torch.where(visible, similarity(scale * q @ k.mT, order), 0)
    return weights @ v / weights.sum(-1, keepdim=True)


def _relative(x: Tensor, oracle: Tensor) -> float:
    return float((x.double() - oracle).norm() / oracle.norm())


def gradient_bound(tokens: Sequence[int], seed: int, head_dim: int) -> list[dict[str, Any]]:
    """Return the gradients d o_ij / d s_il found at order 2, over the largest |v_j|: their size, range and bounds.

    "0 <= s <= 1" is what the paper assumes; there its bound, 10 / (2N + 3), and the sharper 8 / (2N + 3) hold. As it is
    computed, s = q̂ . k̂ lies in [-D, D]. Cases are "drawn", or "worst": what a search over s found, with the worst v.
    """
    return [_gradients(n, seed, head_dim) for n in tokens]


def _gradients(n: int, seed: int, head_dim: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    v, q, k = (torch.randn(n, head_dim, generator=generator, dtype=torch.float64) for _ in range(3))
    drawn = torch.rand(n, n, generator=generator, dtype=torch.float64)
    against = -torch.ones(n, 2, dtype=torch.float64)  # the first key at one end of the values, all others at the other
    against[0] = 1
    against[:, 1] *= -1
    ranges = {
        "0 <= s <= 1, drawn": _range(drawn, v),
        "0 <= s <= 1, worst": _range(_one_against_all(n, 0, 1), against),
        "-D <= s <= D, drawn": _range(normalized(q, "standardize") @ normalized(k, "standardize").T, v),
        "-D <= s <= D, worst": _range(_one_against_all(n, -head_dim, head_dim), against),
    }
    return {
        "tokens": n,
        "largest": {name: max(-least, most) for name, (least, most) in ranges.items()},
        "least": {name: least for name, (least, _) in ranges.items()},
        "most": {name: most for name, (_, most) in ranges.items()},
        "paper": 10 / (2 * n + 3),
        "sharp": 8 / (2 * n + 3),
    }


def _one_against_all(n: int, low: float, high: float) -> Tensor:
    """Return queries, one a row, that see the first key at any s of the range and the rest at one s.

    The rest count by the sum of their f alone, which is least at -1, and at 0 for s of one sign.
    """
    first = torch.linspace(low, high, 1025, dtype=torch.float64)
    others = [s for s in sorted({low, -1.0, 0.0, high}) if low <= s <= high]
    s = torch.tensor(others, dtype=torch.float64).repeat_interleave(len(first))[:, None].repeat(1, n)
    s[:, 0] = first.repeat(len(others))
    return s


def _range(s: Tensor, v: Tensor) -> tuple[float, float]:
    """Return the least and the most of equation [15], (1 + s_il) / g_i times (v_lj - o_ij), for every i, l and j."""
    v = v / v.abs().amax(0)
    f = similarity(s, 2)
    g = f.sum(-1, keepdim=True)
    o = f @ v / g
    factor = (1 + s) / g
    ends = [(factor * (v[:, j] - o[:, j, None])).aminmax() for j in range(v.shape[1])]
    return min(float(low) for low, _ in ends), max(float(high) for _, high in ends)


def negative_weights(seed: int, tokens: int = 64) -> list[dict[str, Any]]:
    """Return the share of negative weights and of denominators <= 0, of Gaussian queries and keys, by order and scale."""
    rows = []
    for head_dim in (16, 32, 64, 128):
        generator = torch.Generator().manual_seed(seed)
        q, k = (torch.randn(64, tokens, head_dim, generator=generator, dtype=torch.float64) for _ in range(2))
        s = normalized(q, "standardize") @ normalized(k, "standardize").mT
        for order in (1, 2, 3, 4):
            for name, scale in (("1", 1.0), ("1/sqrt(D)", head_dim**-0.5), ("1/D", 1 / head_dim)):
                f = similarity(scale * s, order)
                causal = f.tril().sum(-1)
                rows.append(
                    {
                        "head_dim": head_dim,
                        "order": order,
                        "scale": name,
                        "negative": float((f < 0).double().mean()),
                        "denominators": float((f.sum(-1) <= 0).double().mean()),
                        "causal_denominators": float((causal <= 0).double().mean()),
                    }
                )
    return rows


def saved_memory(tokens: Sequence[int], head_dim: int) -> list[dict[str, Any]]:
    """Return the bytes that a forward pass of order 2 keeps for backward: custom gradient, and autograd on the formula."""
    rows = []
    for n in tokens:
        for is_causal in (False, True):
            q, k, v = (torch.randn(1, n, head_dim).requires_grad_() for _ in range(3))
            ways = {
                "custom gradient": lambda q=q, k=k, v=v, c=is_causal: fastmax_attention(q, k, v, is_causal=c),
                "plain autograd": lambda q=q, k=k, v=v, c=is_causal: core.fastmax(q, k, v, is_causal=c),
            }
            found = {name: _saved(way) for name, way in ways.items()}
            rows.append({"tokens": n, "head_dim": head_dim, "is_causal": is_causal, "bytes": found})
    return rows


def _saved(way: Any) -> int:
    """Return the bytes of distinct storages, including inputs, which exist anyway."""
    storages: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        o = way()
    del o
    return sum(storages.values())
