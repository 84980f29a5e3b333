"""Sequences that a state decodes in random pieces, for the fuzzer: one causal call, and how its tokens arrive."""

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from tests.backends.conformance import DTYPES, make
from tests.support import randn
from torch import Tensor

from fastmax.call import Call
from fastmax.core import normalized
from fastmax.state import FastmaxState


@dataclass(frozen=True)
class Decoding:
    call: Call  # causal, over all tokens
    pieces: tuple[tuple[int, bool], ...]  # how many tokens come at once, and whether their queries ask
    inference: bool


@st.composite
def decodings(draw: st.DrawFn, most_tokens: int, most_channels: int) -> Decoding:
    torch.manual_seed(draw(st.integers(0, 1000)))
    dtypes = DTYPES[draw(st.sampled_from(["fp64", "fp32", "fp32", "bf16", "fp16"]))]
    dtype = torch.float64 if dtypes[0] == torch.float64 else torch.float32
    batch, heads, groups = (draw(st.integers(1, most)) for most in (3, 3, 3))
    dim, value_dim = (draw(st.integers(1, most_channels)) for _ in range(2))
    order = draw(st.sampled_from([1, 2, 2, 2, 3]))
    if order > 2:
        dim = min(dim, 6)
    sizes = draw(st.lists(st.sampled_from([1] * 24 + [2, 3, 17, 60]), min_size=1, max_size=most_tokens))
    pieces = [(size, draw(st.sampled_from([True] * 15 + [False]))) for size in sizes]
    n = sum(sizes)
    q = randn(batch, heads * groups, n, dim, dtype=dtypes[0])
    k, v = (randn(batch, heads, n, size, dtype=dtypes[0]) for size in (dim, value_dim))
    normalize = draw(st.sampled_from(["standardize", "standardize", "none", "rms"]))
    if normalize == "none":
        q, k = (normalized(x.double(), "rms").to(x.dtype) for x in (q, k))
    more: dict[str, Any] = {}
    decays = draw(st.booleans())
    if decays:
        more["log_decay"] = -torch.rand(batch, heads, n, dtype=torch.float64).pow(4).mul(0.5).to(dtype)
    if draw(st.booleans()):
        mask = torch.rand(batch, 1, n) < 0.7
        more["key_mask"] = mask
        if decays:
            more["log_decay"] = torch.where(mask, more["log_decay"], 0)
    if draw(st.booleans()):
        more["head_scale"] = torch.rand(heads * groups, dtype=torch.float64).to(dtype)
    call = make(q, k, v, order=order, is_causal=True, normalize=normalize, out_dtype=dtypes[0], **more)
    return Decoding(call, tuple(pieces), draw(st.booleans()))


def stepped(case: Decoding) -> tuple[Tensor, Tensor]:
    """Return the outputs of the queries that asked, and their indices."""
    call, outputs, seen, at = case.call, [], [], 0
    scale: float | Tensor = call.scale if call.head_scale is None else call.scale * call.head_scale
    with torch.inference_mode() if case.inference else torch.no_grad():
        state = FastmaxState.empty(
            call.k.shape[0],
            call.k.shape[1],
            call.k.shape[3],
            call.v.shape[3],
            call.options.order,
            scale=scale,
            normalize={"standardize": True, "none": False}.get(call.options.normalize, "rms"),
            dtype=call.dtype,
        )
        for size, asks in case.pieces:
            now = slice(at, at + size)
            q, k, v = (x[:, :, now] for x in (call.q, call.k, call.v))
            mask = None if call.key_mask is None else call.key_mask[:, 0, now]
            decay = None if call.log_decay is None else call.log_decay[:, :, now]
            if asks:
                outputs.append(state.step(q, k, v, mask, decay))
                seen += range(at, at + size)
            else:
                state.update(k, v, mask, decay)
            at += size
    o = torch.cat([call.q.new_empty(*call.q.shape[:2], 0, call.v.shape[3]), *outputs], 2)
    return o.clone(), torch.tensor(seen, dtype=torch.int64)
