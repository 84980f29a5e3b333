"""Fastmax on the CPU by kernels in C++ (native/ in the repository): both exact forms, standardization and division fused."""

from typing import Any

import torch
from torch import Tensor

from fastmax.backends.native import abi
from fastmax.backends.native.decode import step, step_unsupported
from fastmax.backends.native.prepared import Prepared
from fastmax.backends.native.rule import causal_chunk, factorized_cost, form
from fastmax.call import InputGrads, OutputGrads, Problem
from fastmax.core import EPS

__all__ = [
    "Prepared", "backward", "describe", "form", "forward", "levels", "prepare", "prepared", "step", "step_unsupported",
    "unsupported",
]  # fmt: skip

_HOPELESS = 4
"""How many times more multiply-adds than another backend's factorized form the dense form of orders 3 and 4 may take."""


def describe() -> str:
    """Which instruction set level is in use, and which are compiled in; or why the backend is missing."""
    library = abi.load()
    if isinstance(library, str):
        return f"missing: {library}"
    threads = "" if library.parallel_for is not None else "; one thread, as torch's thread pool was not found"
    return f"{library.running[0]} (compiled in: {', '.join(library.levels)}){threads}"


def levels() -> tuple[str, ...]:
    """The instruction set levels that run here, the best first."""
    library = abi.load()
    return () if isinstance(library, str) else library.running


def unsupported(p: Problem) -> str | None:
    if p.q.device.type != "cpu":
        return f"it runs on the CPU, and the tensors are on {p.q.device}"
    library = abi.load()
    if isinstance(library, str):
        return library
    if max(p.head_dim, p.value_dim) > abi.MAX_DIM:
        return f"it takes up to {abi.MAX_DIM} channels per head, and there are {p.head_dim} and {p.value_dim}"
    if p.dropout_seed is not None:
        return "dropout acts on single features, which it never forms"
    if p.order > 2:
        if p.state_in is not None or p.return_state:
            return f"order {p.order} has no state in it, only the dense form"
        queries, keys = p.q.shape[2], p.k.shape[2]
        dense = queries * keys * (p.head_dim + p.value_dim)
        if dense > _HOPELESS * factorized_cost(queries, keys, p.head_dim, p.value_dim, p.order):
            return f"order {p.order} has only the dense form in it, which is slow for {keys} keys"
    return None


def forward(p: Problem, *, form: str | None = None, level: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """o, g and state_out. `form` ("dense", "factorized") and `level` force what is otherwise chosen."""
    o, g, state = p.new_outputs()
    call = _Call(p, o, g, has_state=p.state_in is not None or p.return_state, form=form)
    call.state_out = state.data_ptr() if p.return_state else 0
    call.run("forward", level, fills=(o,))
    return o, g, state


def prepare(p: Problem) -> Prepared | None:
    """`forward` for any q, k and v with the shapes and strides of these; None where a call has more to it than they."""
    plain = p.key_mask is p.head_scale is p.state_in is p.cu_seqlens_q is None and not p.return_state
    if unsupported(p) is not None or not plain or not all(_in_rows(x.stride(), x) for x in (p.q, p.k, p.v)):
        return None
    o, g, _ = p.new_outputs()
    call = _Call(p, o, g, has_state=False, form=None)
    q, k, v = (call.tensors[i + 1 : i + 5] for i in (0, 5, 10))
    heads_inside = o.stride(1) < o.stride(2)
    shape = tuple(o.transpose(1, 2).shape if heads_inside else o.shape)
    return Prepared(call.numbers, q, k, v, call.tensors[16:20], shape, heads_inside, o.dtype)


def prepared() -> dict[Any, Prepared]:
    """What the caller has prepared so far, by whatever key; it is gone with the library."""
    library = abi.load()
    return {} if isinstance(library, str) else library.prepared


def backward(
    p: Problem, o: Tensor, g: Tensor, grads: OutputGrads, *, form: str | None = None, level: str | None = None
) -> InputGrads:
    """The gradients of the raw inputs."""
    out = InputGrads.empty(p)
    call = _Call(p, o, g, has_state=p.state_in is not None or grads.state is not None, form=form)
    dq, dk, dv = (
        x if _in_rows(x.stride(), x) else torch.empty_like(x, memory_format=torch.contiguous_format) for x in out[:3]
    )
    call.grads = (*call.tensor(grads.o), *call.tensor(grads.g), *abi.tensor(dq), *abi.tensor(dk), *abi.tensor(dv))
    call.d_state_out = call.pointer(grads.state)
    d_state = out.state
    if p.state_in is not None:
        d_state = torch.empty_like(p.state_in, memory_format=torch.contiguous_format)
        call.d_state_in = d_state.data_ptr()
    d_head_scale = torch.empty(out.head_scale.shape, dtype=torch.float64, device="cpu")
    if p.head_scale is not None:
        call.d_head_scale = d_head_scale.data_ptr()
    call.run("backward", level, fills=(dq, dk, dv))
    for to, x in zip(out, (dq, dk, dv, d_head_scale, d_state), strict=True):
        if to is not x:
            to.copy_(x)
    return out


def _in_rows(strides: tuple[int, ...], x: Tensor) -> bool:
    return strides[-1] == 1 or x.shape[-1] == 1


class _Call:
    """The C structure of a problem, and what must live until it has run."""

    grads = abi.NO_TENSOR * 5
    mask: abi.Fields = (0, 0, 0, 0)
    forms = cu_queries = cu_keys = head_scale = d_head_scale = state_out = d_state_out = d_state_in = 0

    def __init__(self, p: Problem, o: Tensor, g: Tensor, *, has_state: bool, form: str | None):
        self.kept: list[Tensor] = []
        batch, query_heads, queries, head_dim = p.q.shape
        _, key_heads, keys, value_dim = p.v.shape
        sequences, uniform = -1, 0
        if p.cu_seqlens_q is not None and p.cu_seqlens_k is not None:
            cu_q, cu_k = p.cu_seqlens_q.to(torch.int64), p.cu_seqlens_k.to(torch.int64)
            sequences = cu_q.shape[0] - 1
            self.cu_queries, self.cu_keys = self.pointer(cu_q), self.pointer(cu_k)
            lengths = zip(cu_q.diff().tolist(), cu_k.diff().tolist(), strict=True)
            forms = torch.tensor([_form(p, *n, has_state, form) for n in lengths], dtype=torch.int64, device="cpu")
            self.forms = self.pointer(forms)
        else:
            uniform = _form(p, queries, keys, has_state, form)
        self.numbers = (
            abi.TYPES[p.dtype], batch, query_heads, key_heads, queries, keys, head_dim, value_dim,
            p.order, p.is_causal, p.normalize, causal_chunk(head_dim, p.order, p.is_causal),
            sequences, uniform, self.forms, p.scale, EPS,
        )  # fmt: skip
        self.tensors = (*self.tensor(p.q), *self.tensor(p.k), *self.tensor(p.v), *self.tensor(o), *self.tensor(g))
        self.state_in = self.pointer(p.state_in)
        if p.key_mask is not None:
            mask = p.key_mask.expand(batch, key_heads, keys)
            self.kept.append(mask)
            self.mask = (mask.data_ptr(), *mask.stride())
        if p.head_scale is not None:
            self.head_scale = self.pointer(p.head_scale.to(torch.float64))

    def tensor(self, x: Tensor | None) -> abi.Fields:
        if x is None:
            return abi.NO_TENSOR
        strides = x.stride()
        if len(strides) == 4 and not _in_rows(strides, x):
            x = x.contiguous()
            strides = x.stride()
            self.kept.append(x)
        return (x.data_ptr(), *strides[:3], abi.TYPES[x.dtype])

    def pointer(self, x: Tensor | None) -> int:
        if x is None:
            return 0
        self.kept.append(x.contiguous())
        return int(self.kept[-1].data_ptr())

    def run(self, function: str, level: str | None, *, fills: tuple[Tensor, ...]) -> None:
        library = abi.load()
        assert not isinstance(library, str), library
        for x in fills:
            library.huge_pages(x)
        call = abi.CALL.pack(
            *self.numbers, *self.tensors, *self.grads, *self.mask, self.cu_queries, self.cu_keys,
            self.head_scale, self.d_head_scale, self.state_in, self.state_out, self.d_state_out, self.d_state_in,
        )  # fmt: skip
        library.run(function, call, level)


def _form(p: Problem, queries: int, keys: int, has_state: bool, forced: str | None) -> int:
    if forced == "factorized" and p.order > 2:
        raise ValueError(f"order {p.order} has only the dense form, got form={forced!r}")
    if has_state:  # a state is the factorized form's
        return abi.FORMS["factorized"]
    if forced is None:
        forced = form(queries, keys, p.head_dim, p.value_dim, p.order, p.is_causal)
    return abi.FORMS[forced]
