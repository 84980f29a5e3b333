"""Fastmax on the CPU by kernels in C++ (native/ in the repository): both exact forms, normalization and division fused."""

import torch
from torch import Tensor

from fastmax import _torch_private
from fastmax.backends.native import abi
from fastmax.backends.native.decode import can_step, prepare_step
from fastmax.backends.native.packed_call import PackedCall, in_rows
from fastmax.backends.native.prepared import NativeCall
from fastmax.call import Call, InputGrads, OutputGrads
from fastmax.plan import RULE, Plan, dense_costs_too_much

__all__ = [
    "backward", "can_step", "describe", "fades_both_ways", "form", "forward", "levels", "prepare", "prepare_step",
    "unsupported",
]  # fmt: skip


def describe() -> str:
    """Return the instruction set level in use and those compiled in, or why the backend is missing."""
    library = abi.load()
    if isinstance(library, str):
        return f"missing: {library}"
    threads = "" if library.parallel_for is not None else "; one thread, as torch's thread pool was not found"
    return f"{library.running[0]} (compiled in: {', '.join(library.levels)}){threads}"


def levels() -> tuple[str, ...]:
    """Return the instruction set levels that run here, the best first."""
    library = abi.load()
    return () if isinstance(library, str) else library.running


def form(call: Call) -> str:
    """Return the form that the rule picks for a call of one sequence length and no state."""
    o, g, _ = call.new_outputs()
    chosen = PackedCall(call, RULE, o, g, has_state=False).uniform
    return next(name for name, value in abi.FORMS.items() if value == chosen)


def unsupported(call: Call) -> str | None:
    q, options = call.q, call.options
    if not q.is_cpu:
        return f"it runs on the CPU, and the tensors are on {q.device}"
    library = abi.load()
    if isinstance(library, str):
        return library
    head_dim, value_dim = q.shape[3], call.v.shape[3]
    if head_dim > abi.MAX_DIM or value_dim > abi.MAX_DIM:
        return f"it takes up to {abi.MAX_DIM} channels per head, and there are {head_dim} and {value_dim}"
    if options.order > 2:
        if call.drops_features:
            return f"order {options.order} has only the dense form in it, which forms no features to drop"
        if call.state_in is not None or options.return_state:
            return f"order {options.order} has no state in it, only the dense form"
        if dense_costs_too_much(q.shape[2], call.k.shape[2], head_dim, value_dim, options.order):
            return f"order {options.order} has only the dense form in it, which is slow for {call.k.shape[2]} keys"
    return None


def fades_both_ways(call: Call) -> bool:
    """Return True if a call with log_decay that is not causal comes here and needs no second one.

    Dropout draws masks of pairs in one order. Depends on nothing that a compiler would have to guard.
    """
    small = max(call.head_dim, call.value_dim) <= abi.MAX_DIM and call.options.order <= 2
    return (
        small and call.q.is_cpu and call.dropout_seed is None and call.options.backend in ("auto", "native") and _runs()
    )


@_torch_private.constant_while_tracing
def _runs() -> bool:
    return bool(levels())


def forward(call: Call, plan: Plan = RULE) -> tuple[Tensor, Tensor, Tensor]:
    """Return o, g and state_out."""
    o, g, state = call.new_outputs()
    packed = PackedCall(call, plan, o, g, has_state=call.state_in is not None or call.options.return_state)
    if call.options.return_state:
        packed.point("state_out", state)
    packed.run("forward", plan.level, fills=(o,))
    return o, g, state


def backward(call: Call, plan: Plan, o: Tensor, g: Tensor, grads: OutputGrads) -> InputGrads:
    """Return the gradients of the raw inputs."""
    out = InputGrads.empty(call)
    packed = PackedCall(call, plan, o, g, has_state=call.state_in is not None or grads.state is not None)
    dq, dk, dv = (x if in_rows(x) else torch.empty_like(x, memory_format=torch.contiguous_format) for x in out[:3])
    d_log_decay = None if call.log_decay is None else out.log_decay
    packed.put(d_o=grads.o, d_g=grads.g, d_q=dq, d_k=dk, d_v=dv, d_decay=d_log_decay)
    packed.point("d_state_out", grads.state)
    d_state = out.state_in
    if call.state_in is not None:
        d_state = torch.empty_like(call.state_in, memory_format=torch.contiguous_format)
        packed.point("d_state_in", d_state)
    d_head_scale = out.head_scale
    if call.head_scale is not None:
        d_head_scale = torch.empty(out.head_scale.shape, dtype=torch.float64, device="cpu")
        packed.point("d_head_scale", d_head_scale)
    packed.run("backward", plan.level, fills=(dq, dk, dv))
    for to, found in zip(out, (dq, dk, dv, d_head_scale, out.log_decay, d_state), strict=True):
        if to is not found:
            to.copy_(found)
    return out


def prepare(call: Call) -> NativeCall | None:
    """Return a call for q, k and v of these shapes and strides. Return None if the call has other tensors."""
    plain = call.key_mask is call.head_scale is call.state_in is call.cu_seqlens_q is None
    if not plain or call.options.return_state:
        return None
    for x in (call.q, call.k, call.v):
        if x.stride(3) != 1 and x.shape[3] != 1:
            return None
    o, g, _ = call.new_outputs()
    return NativeCall.of(call, PackedCall(call, RULE, o, g, has_state=False), o, g)
