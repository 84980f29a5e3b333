"""Fastmax on the CPU by kernels in C++ (native/ in the repository): both exact forms, standardization and division fused."""

import ctypes

import torch
from torch import Tensor

from fastmax.backends.native import abi
from fastmax.backends.native.decode import step, step_unsupported
from fastmax.backends.native.rule import factorized_cost, form
from fastmax.core import EPS
from fastmax.problem import InputGrads, OutputGrads, Problem

__all__ = ["backward", "describe", "form", "forward", "levels", "step", "step_unsupported", "unsupported"]

_HOPELESS = 4
"""How many times more multiply-adds than another backend's factorized form the dense form of orders 3 and 4 may take."""


def describe() -> str:
    """Which instruction set level is in use, and which are compiled in; or why the backend is missing."""
    library = abi.load()
    if isinstance(library, str):
        return f"missing: {library}"
    return f"{library.running[0]} (compiled in: {', '.join(library.levels)})"


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
    if p.return_state:
        call.struct.state_out = state.data_ptr()
    call.run("fm_forward", level, fills=(o,))
    return o, g, state


def backward(
    p: Problem, o: Tensor, g: Tensor, grads: OutputGrads, *, form: str | None = None, level: str | None = None
) -> InputGrads:
    """The gradients of the raw inputs."""
    out = InputGrads.empty(p)
    call = _Call(p, o, g, has_state=p.state_in is not None or grads.state is not None, form=form)
    struct = call.struct
    struct.d_o, struct.d_g = call.tensor(grads.o), call.tensor(grads.g)
    dq, dk, dv = (x if _in_rows(x) else torch.empty_like(x, memory_format=torch.contiguous_format) for x in out[:3])
    struct.d_q, struct.d_k, struct.d_v = abi.tensor(dq), abi.tensor(dk), abi.tensor(dv)
    struct.d_state_out = call.pointer(grads.state)
    d_state = out.state
    if p.state_in is not None:
        d_state = torch.empty_like(p.state_in, memory_format=torch.contiguous_format)
        struct.d_state_in = d_state.data_ptr()
    d_head_scale = torch.empty(out.head_scale.shape, dtype=torch.float64)
    if p.head_scale is not None:
        struct.d_head_scale = d_head_scale.data_ptr()
    call.run("fm_backward", level, fills=(dq, dk, dv))
    for to, x in zip(out, (dq, dk, dv, d_head_scale, d_state), strict=True):
        if to is not x:
            to.copy_(x)
    return out


def _in_rows(x: Tensor) -> bool:
    return x.stride(-1) == 1 or x.shape[-1] == 1


class _Call:
    """The C structure of a problem, and what must live until it has run."""

    def __init__(self, p: Problem, o: Tensor, g: Tensor, *, has_state: bool, form: str | None):
        self.kept: list[Tensor] = []
        batch, query_heads, queries, head_dim = p.q.shape
        key_heads, keys, value_dim = p.v.shape[1:]
        struct = self.struct = abi.FmCall(
            abi.TYPES[p.dtype], batch, query_heads, key_heads, queries, keys, head_dim, value_dim,
            p.order, p.is_causal, p.normalize, -1,
            scale=p.scale, eps=EPS, q=self.tensor(p.q), k=self.tensor(p.k), v=self.tensor(p.v), o=self.tensor(o),
            g=self.tensor(g), state_in=self.pointer(p.state_in),
        )  # fmt: skip
        lengths = [(queries, keys)] * batch
        if p.cu_seqlens_q is not None and p.cu_seqlens_k is not None:
            cu_q, cu_k = p.cu_seqlens_q.to(torch.int64), p.cu_seqlens_k.to(torch.int64)
            struct.sequences = cu_q.shape[0] - 1
            struct.cu_queries, struct.cu_keys = self.pointer(cu_q), self.pointer(cu_k)
            lengths = list(zip(cu_q.diff().tolist(), cu_k.diff().tolist(), strict=True))
        self.forms = (ctypes.c_int64 * len(lengths))(*(self._form(p, *n, has_state, form) for n in lengths))
        struct.form = ctypes.addressof(self.forms)
        if p.key_mask is not None:
            mask = p.key_mask.expand(batch, key_heads, keys)
            self.kept.append(mask)
            struct.mask = mask.data_ptr()
            struct.mask_batch_stride, struct.mask_head_stride, struct.mask_token_stride = mask.stride()
        if p.head_scale is not None:
            struct.head_scale = self.pointer(p.head_scale.to(torch.float64))

    @staticmethod
    def _form(p: Problem, queries: int, keys: int, has_state: bool, forced: str | None) -> int:
        if forced == "factorized" and p.order > 2:
            raise ValueError(f"order {p.order} has only the dense form, got form={forced!r}")
        if has_state:  # a state is the factorized form's
            return abi.FORMS["factorized"]
        if forced is None:
            forced = form(queries, keys, p.head_dim, p.value_dim, p.order, p.is_causal)
        return abi.FORMS[forced]

    def tensor(self, x: Tensor | None) -> abi.FmTensor:
        if x is not None and x.dim() == 4 and not _in_rows(x):
            x = x.contiguous()
        if x is not None:
            self.kept.append(x)
        return abi.tensor(x)

    def pointer(self, x: Tensor | None) -> int | None:
        if x is None:
            return None
        self.kept.append(x.contiguous())
        return self.kept[-1].data_ptr()

    def run(self, function: str, level: str | None, *, fills: tuple[Tensor, ...]) -> None:
        library = abi.load()
        assert not isinstance(library, str), library
        for x in fills:
            library.huge_pages(x)
        library.run(function, self.struct, level)
