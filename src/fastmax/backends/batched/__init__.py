"""Fastmax in a few batched products of all heads and chunks: plain PyTorch for accelerators, without waiting for them.

Sums over keys are taken per slot (slots.py), summed over slots, and read; the features of one block of channels exist at a
time (features.py). Pairs inside causal slots, and short sequences, take the dense form (pairs.py). The backward pass is
the same sums with the roles of queries and keys exchanged, on slots in reverse.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from fastmax.backends.batched import flex, pairs
from fastmax.backends.batched.features import blocks, pack
from fastmax.backends.batched.products import add_product, product
from fastmax.backends.batched.slots import Slots
from fastmax.backends.batched.sums import Sums
from fastmax.backends.batched.work import Work, takes_dense_form, temporary_bytes
from fastmax.call import Call, InputGrads, OutputGrads
from fastmax.decay import log_decay_grads, rows_part
from fastmax.parts import Part, parts
from fastmax.plan import RULE, Plan, dense_costs_too_much

__all__ = ["backward", "describe", "differentiable", "forward", "unsupported"]

FLEX_SPEED = 4.0
"""The assumed speed of multiply-adds in FlexAttention, over those of the factorized form. The estimates of
docs/gpu.md say 11; nothing is measured."""


def describe() -> str:
    return "plain PyTorch for accelerators, orders 1 and 2 (3 and 4 in the dense form)"


def unsupported(call: Call) -> str | None:
    options = call.options
    if options.backend == "auto" and call.q.device.type == "cpu":
        return "it is made for accelerators"
    if options.order > 2:
        if call.state_in is not None or options.return_state:
            return f"order {options.order} has no state in it, only the dense form"
        if call.drops_features:
            return f"order {options.order} has only the dense form in it, without dropout of features"
        if dense_costs_too_much(call.q.shape[2], call.k.shape[2], call.head_dim, call.value_dim, options.order):
            return f"order {options.order} has only the dense form in it, which is slow for {call.k.shape[2]} keys"
    return None


def forward(call: Call, plan: Plan = RULE) -> tuple[Tensor, Tensor, Tensor]:
    """Return o, g and state_out."""
    fused = _fused(call, plan)
    if fused is not None:
        return flex.forward(call, fused)
    o, g, state = call.new_outputs()
    for part, work in _parts(call, plan):
        found = _forward(work, part.of_queries(o), part.of_queries(g))
        if found is not None:
            part.of_states(state).copy_(found)
    return o, g, state


def backward(call: Call, plan: Plan, o: Tensor, g: Tensor, grads: OutputGrads) -> InputGrads:
    """Return the gradients of the raw inputs."""
    fused = _fused_with_grads(call, plan)
    if fused is not None:
        return flex.backward(call, grads, fused)
    out = InputGrads.empty(call)
    out.head_scale.zero_()
    for part, work in _parts(call, plan):
        outputs = part.of_queries(o), part.of_queries(g)
        _backward(work, *outputs, part.of_output_grads(grads), part.of_input_grads(call, out))
    return out


def differentiable(call: Call) -> Tensor | None:
    """Return o by FlexAttention with its own gradients, or None where it does not compute the call or the gradients."""
    fused = _fused_with_grads(call, RULE)
    return None if fused is None else flex.attend_with_graph(call, fused)


def _fused(call: Call, plan: Plan) -> flex.Functions | None:
    """Return FlexAttention if it computes this call."""
    functions = flex.functions_for(call)
    return functions if functions is not None and takes_dense_form(call, plan, FLEX_SPEED) else None


def _fused_with_grads(call: Call, plan: Plan) -> flex.Functions | None:
    """Return FlexAttention if it computes this call and its gradients too."""
    return _fused(call, plan) if call.log_decay is None else None


def _forward(work: Work, o: Tensor, g: Tensor) -> Tensor | None:
    call, queries = work.call, work.queries
    f = queries.x.new_zeros(*queries.x.shape[:-1], work.columns)
    if call.options.is_causal or work.is_dense:
        pairs.attend(work, f)
    state = None
    if not work.is_dense:
        sums = _sums_of_keys(work, call.options.return_state)
        for block in blocks(call.head_dim, call.options.order):
            for span, states in sums.walk(block):
                if work.decays is None:
                    add_product(f[:, :, span], queries.features(block, span), states)
                else:
                    found = product(queries.features(block, span), states, f.dtype)
                    f[:, :, span].add_(work.fade_queries(found, span))
        state = pack(sums.final, call.head_dim, call.options.order) if call.options.return_state else None
    work.store(f, o, g)
    return state


def _backward(work: Work, o: Tensor, g: Tensor, grads: OutputGrads, out: InputGrads) -> None:
    call, queries, keys = work.call, work.queries, work.keys
    order, head_dim = call.options.order, call.head_dim
    w = work.output_grads(o, g, grads)
    dq = torch.zeros_like(queries.x)
    if work.is_dense:
        dk, du = torch.zeros_like(keys.x), torch.zeros_like(work.values)
    else:
        faded, u = work.fade_queries(w), work.fade_keys(work.values)
        dk, du, d_state = _gradients_of_keys(work, faded, u, grads.state)
        if d_state is not None:
            out.state_in.copy_(d_state)
        narrow = faded.to(work.half)
        sums = _sums_of_keys(work, keeps_final=False)
        for block in blocks(head_dim, order):
            for span, states in sums.walk(block):
                values = faded if block.stop == 0 else narrow
                d = product(values[:, :, span], states.mT, states.dtype)
                queries.add_vjp(block, span, d, dq)
    if call.options.is_causal or work.is_dense:
        pairs.attend_vjp(work, w, dq, dk, du)
    if call.log_decay is not None:
        dc = -work.slots[1].join((work.values * du).sum(-1))
        out.log_decay.copy_(log_decay_grads(dc + rows_part(g, grads.g, call.groups), call.cu_seqlens_k))
    work.store_grads(dq, dk, du, out)


def _sums_of_keys(work: Work, keeps_final: bool) -> Sums:
    call = work.call
    queries, keys = work.slots
    log_factors = None if work.decays is None else work.decays[..., -1]
    is_causal = call.options.is_causal
    u = work.fade_keys(work.values)
    return Sums(
        work.keys,
        u,
        u.to(work.half),
        keys,
        queries,
        is_causal,
        log_factors,
        call.state_in,
        work.at_once,
        keeps_final,
        [],
    )


def _gradients_of_keys(
    work: Work, w: Tensor, u: Tensor, d_state: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return what keys and values get from the queries after them, and the gradient of the state that is given."""
    call, is_causal = work.call, work.call.options.is_causal
    queries, keys = work.queries, work.keys
    slots, readers = work.slots
    log_factors = None if work.decays is None else work.decays[..., -1]
    if is_causal:  # later slots come first
        queries, keys, w, u = queries.reversed(), keys.reversed(), w.flip(2), u.flip(2)
        slots, readers = _reversed(slots), _reversed(readers)
        log_factors = None if log_factors is None else log_factors.flip(2)
    needs_state = call.state_in is not None
    narrow_w, narrow_u = w.to(work.half), u.to(work.half)
    sums = Sums(queries, w, narrow_w, slots, readers, is_causal, log_factors, d_state, work.at_once, needs_state, [])
    dk, du = torch.zeros_like(keys.x), torch.zeros_like(u)
    for block in blocks(call.head_dim, call.options.order):
        for span, states in sums.walk(block):
            add_product(du[:, :, span], keys.features(block, span), states)
            values = u if block.stop == 0 else narrow_u
            d = product(values[:, :, span], states.mT, states.dtype)
            keys.add_vjp(block, span, d, dk)
    if is_causal:
        dk, du = dk.flip(2), du.flip(2)
    found = pack(sums.final, call.head_dim, call.options.order) if needs_state else None
    return dk, work.fade_keys(du), found


def _reversed(slots: Slots) -> Slots:
    return slots if slots.packing is None else replace(slots, packing=slots.packing.reversed())


def _parts(call: Call, plan: Plan) -> Iterator[tuple[Part, Work]]:
    """Cut a call by batch elements and key heads, so that the slots of each fit the budget. Most calls are one part."""
    batch, heads = call.k.shape[:2]
    sequences = 1 if call.cu_seqlens_k is None else call.cu_seqlens_k.shape[0] - 1
    if batch * heads * call.groups * sequences == 0:
        return
    budget = plan.feature_budget or temporary_bytes(call.q.device)
    # few heads at once, whose sums are then one span, before more spans
    fitting = max(1, budget // Work(call, plan, budget).bytes_per_head)
    masks = call.dropout_masks()
    for part in parts(call, fitting if fitting >= heads else -(-heads // -(-heads // fitting))):
        yield part, Work(part.of_call(call), plan, budget, part.of_masks(masks))
