"""Launches, bytes and flops of a call in plain PyTorch, counted on meta tensors: any length, in seconds, without a GPU."""

from collections import Counter
from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fastmax.backends import batched, resolve
from fastmax.backends.batched import flex
from fastmax.call import Call, Options, OutputGrads
from fastmax.plan import RULE, Plan

ALLOCATIONS = frozenset(("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"))
OVERWRITES = frozenset(("copy_", "fill_", "zero_"))
"""In-place operations that do not read what they write to."""

PRODUCTS = frozenset(("mm", "bmm", "addmm", "addmm_", "baddbmm", "baddbmm_"))


ADDED = torch.ops.aten.baddbmm.dtype_out


class Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """`with Launches() as counted: ...` counts each operation that is neither a view nor an allocation as one launch.

    An operation counts the bytes of each tensor that it reads and writes; expanded dimensions count once. A copy to
    the host, or a value that Python reads, raises an error on meta tensors: nothing that is counted waits for a device.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.by_operation: Counter[str] = Counter()
        self.bytes = 0
        self.flops: Counter[torch.dtype] = Counter()  # of matrix products, by the dtype of the factors
        self.flex: Counter[str] = Counter()  # passes of FlexAttention, forward and backward

    @property
    def total(self) -> int:
        return self.by_operation.total()

    def fuse(self, read: Sequence[Tensor], written: Sequence[Tensor]) -> None:
        """Count a compiled kernel."""
        self.by_operation["compiled"] += 1
        self.bytes += sum(map(_bytes, [*read, *written]))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # torch 2.13 has no kernel on the meta device for a product that is added in place to sums of another dtype
        out = kwargs["out"] if func is ADDED else func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        aliases = [x.alias_info for x in func._schema.returns]
        if name in ALLOCATIONS or name == "_unsafe_view" or any(x is not None and not x.is_write for x in aliases):
            return out
        self.by_operation[name] += 1
        read = [x for x in tree_leaves((args, {**(kwargs or {}), "out": None})) if isinstance(x, Tensor)]
        written = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
        once = {id(x): x for x in (read[1:] if name in OVERWRITES else read)}
        self.bytes += sum(map(_bytes, [*once.values(), *written]))
        if name in PRODUCTS:
            a, b = read[-2:]
            self.flops[a.dtype] += 2 * a.numel() * b.shape[-1]
        return out


def _bytes(x: Tensor) -> int:
    size = x.element_size()
    for length, stride in zip(x.shape, x.stride(), strict=True):
        size *= 1 if stride == 0 and length > 1 else length
    return size


class CompiledFlex(torch.autograd.Function):
    """Stand-in for FlexAttention, which counts it by pass."""

    @staticmethod
    def forward(ctx: Any, counted: Launches, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        counted.flex["forward"] += 1
        ctx.counted = counted
        ctx.save_for_backward(q, k, v)
        return q.new_empty((*q.shape[:3], v.shape[3]))

    @staticmethod
    def backward(ctx: Any, _: Any) -> Any:
        ctx.counted.flex["backward"] += 1
        return None, *map(torch.empty_like, ctx.saved_tensors)


def compiled_functions(counted: Launches) -> flex.Functions:
    """Return stand-ins for the compiled functions around FlexAttention, which count the kernels that the compiler makes.

    Those are one for q and one for k and v, and for their gradients one each (tests/backends/flex_kernels.py).
    """

    def prepare(raw: flex.Raw, _: flex.Settings) -> flex.Operands:
        q, k, v = raw[:3]
        counted.fuse([q], [q])
        counted.fuse([k, v], [k, v])
        return flex.Operands(*map(torch.empty_like, (q, k, v)))

    def attend(prepared: flex.Operands, _: flex.Forgetting, settings: flex.Settings, __: Any) -> Any:
        o = CompiledFlex.apply(counted, *prepared)  # type: ignore[no-untyped-call]
        g = o.new_empty(o.shape[:3], dtype=torch.float32) if settings.returns_g else None
        if g is not None:
            counted.fuse([g], [g])
        return o, g

    def gradients(raw: flex.Raw, grads: flex.Operands, _: flex.Settings) -> flex.Grads:
        for x, d in zip(raw, grads, strict=False):
            assert x is not None
            counted.fuse([x, d], [x])
        dq, dk, dv = map(torch.empty_like, raw[:3])
        return dq, dk, dv, None

    return flex.Functions(prepare, attend, gradients)


def count(
    tokens: int,
    *,
    head_dim: int = 64,
    heads: int = 16,
    order: int = 2,
    is_causal: bool = True,
    backward: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    plan: Plan = RULE,
    dropout_p: float = 0.0,
    with_flex: bool = False,
    **tensors: Any,
) -> Launches:
    """Count one call on the meta device, by the backend that it would get: what an accelerator without kernels runs.

    `tensors` are further tensors of the `Call`. Tables that the first call of a kind caches are not counted. With
    `with_flex` the device is one on which FlexAttention can be compiled.
    """
    shape = (1, tokens, heads, head_dim)
    q, k, v, do = (torch.empty(shape, dtype=dtype, device="meta").transpose(1, 2).detach() for _ in range(4))
    for x in (q, k, v):
        x.requires_grad_(backward and with_flex)
    options = Options(order=order, is_causal=is_causal, scale=head_dim**-0.5, dropout_p=dropout_p)
    out_dtype = torch.float32 if "log_decay" in tensors else dtype
    call = Call(q, k, v, **tensors, options=options._replace(out_dtype=out_dtype))
    backend = resolve(call)
    for counted in (Launches(), Launches()):
        functions = compiled_functions(counted) if with_flex else None
        with mock.patch.object(flex, "functions_for", lambda _, functions=functions: functions), counted:
            o = batched.differentiable(call) if backend is batched else None
            if o is not None and backward:
                torch.autograd.grad(o, (q, k, v), do)
            elif o is None:
                with torch.no_grad():
                    o, g, _ = backend.forward(call, plan)
                    if backward:
                        backend.backward(call, plan, o, g, OutputGrads(do, None, None))
    return counted
