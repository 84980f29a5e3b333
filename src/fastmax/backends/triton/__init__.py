"""Fastmax on GPUs by kernels in Triton: both exact forms, all fused. Triton is imported at the first launch."""

import torch
from torch import Tensor

from fastmax.backends.triton import both_passes, checked, device
from fastmax.backends.triton.cut import heads_at_once
from fastmax.backends.triton.decode import MAX_DIM, can_step, prepare_step
from fastmax.backends.triton.work import Launch
from fastmax.call import Call, InputGrads, OutputGrads
from fastmax.parts import parts
from fastmax.plan import RULE, Plan, dense_costs_too_much

__all__ = ["backward", "can_step", "describe", "forward", "prepare_step", "unsupported"]


def describe() -> str:
    """Return the version of Triton and whether the doctor has passed it here, or why the backend is missing."""
    version = device.triton_version()
    if version is None:
        return "missing: triton is not installed; the CUDA and ROCm builds of torch bring it"
    here = torch.cuda.is_available() and checked.is_checked(torch.device("cuda"))
    return f"Triton {'.'.join(map(str, version))}; {'checked' if here else 'not checked'} on this machine by fastmax doctor"


def unsupported(call: Call) -> str | None:
    q, options = call.q, call.options
    reason = device.missing(q.device)
    if reason is not None:
        return reason
    if call.dropout_seed is not None:
        return "dropout acts on single features, which it never stores"
    head_dim, value_dim = call.head_dim, call.value_dim
    if head_dim > MAX_DIM or value_dim > MAX_DIM:
        return f"it takes up to {MAX_DIM} channels per head, and there are {head_dim} and {value_dim}"
    if call.dtype.itemsize > 4:
        return "it has no float64"
    if options.order > 2:
        if call.state_in is not None or options.return_state:
            return f"order {options.order} has no state in it, only the dense form"
        if dense_costs_too_much(q.shape[2], call.k.shape[2], head_dim, value_dim, options.order):
            return f"order {options.order} has only the dense form in it, which is slow for {call.k.shape[2]} keys"
    if options.backend == "auto" and q.device.type == "cuda" and not checked.is_checked(q.device):
        arch = device.architecture(q.device)
        checked.suggest_doctor(arch)
        return f"it is not checked on this GPU ({arch}) yet: fastmax doctor does that"
    return None


def forward(call: Call, plan: Plan = RULE) -> tuple[Tensor, Tensor, Tensor]:
    """Return o, g and state_out."""
    o, g, state = call.new_outputs()
    arch = device.architecture(call.q.device)
    for part in parts(call, heads_at_once(call, plan, arch)):
        state_out = part.of_states(state) if call.options.return_state else None
        both_passes.forward(Launch(part.of_call(call), plan, arch), part.of_queries(o), part.of_queries(g), state_out)
    return o, g, state


def backward(call: Call, plan: Plan, o: Tensor, g: Tensor, grads: OutputGrads) -> InputGrads:
    """Return the gradients of the raw inputs."""
    out = InputGrads.empty(call)
    arch = device.architecture(call.q.device)
    if call.head_scale is not None:
        out.head_scale.zero_()  # of which each part has a share
    for part in parts(call, heads_at_once(call, plan, arch)):
        work, outputs = Launch(part.of_call(call), plan, arch), (part.of_queries(o), part.of_queries(g))
        both_passes.backward(work, *outputs, part.of_output_grads(grads), part.of_input_grads(call, out))
    return out
