"""Forward and backward of one call: the kernels on span after span, the state handed on in fp32 as the kernels have it."""

import torch
from torch import Tensor

from fastmax.backends.triton import launch
from fastmax.backends.triton.launch import Sums, Values
from fastmax.backends.triton.states import Centres, from_kernels, mean_of, to_kernels
from fastmax.backends.triton.work import Launch, Side, Span
from fastmax.call import InputGrads, OutputGrads
from fastmax.decay import log_decay_grads, rows_part


def forward(work: Launch, o: Tensor, g: Tensor, state_out: Tensor | None) -> None:
    call = work.call
    queries, (keys, values) = launch.queries(work), launch.keys(work)
    spans = work.spans()
    centres = None
    if not work.dense or call.state_in is not None or state_out is not None:
        centres = _centres(work, keys, values)
        values = launch.centred(work, keys, values, centres)
    state = None if call.state_in is None or centres is None else _given(work, call.state_in, centres, adjoint=False)
    for number, span in enumerate(spans):
        total = state_out is not None or number + 1 < len(spans)
        sums, state = _summed(work, keys, span, values, state, total=total)
        own = values._replace(x_of_state=queries.hat)
        launch.read(work, queries, keys, span, own, values, sums, centres, o, g=g)
    if state_out is not None and state is not None and centres is not None:
        state_out.copy_(from_kernels(state, work.shape, centres, adjoint=False))


def backward(work: Launch, o: Tensor, g: Tensor, grads: OutputGrads, out: InputGrads) -> None:
    """Walk the spans in reverse. If there are several, sum the states that they start from again first.

    Several are of a single head, so these states are a fraction of its queries, however long they are.
    """
    call = work.call
    queries, (keys, values) = launch.queries(work), launch.keys(work)
    spans = work.spans()
    centres = None
    if not work.dense or call.state_in is not None or grads.state is not None:
        centres = _centres(work, keys, values)
        values = launch.centred(work, keys, values, centres)
    w = launch.output_grads(work, queries, o, g, grads.o, grads.g, centres, values.fading)
    given = (call.state_in, False), (grads.state, True)
    state, d_state = (None if x is None or centres is None else _given(work, x, centres, adjoint=y) for x, y in given)
    starts = [state]
    for span in spans[:-1]:
        starts.append(_summed(work, keys, span, values, starts[-1], total=True, are_read=False)[1])
    dq, dk, dv = (x if x.stride(3) == 1 or x.shape[3] == 1 else x.new_empty(x.shape) for x in out[:3])
    d_scale = None if call.head_scale is None else torch.empty(call.q.shape[:3], device=work.device)
    dc = None if call.log_decay is None else torch.empty(call.k.shape[:3], device=work.device)
    for number, span in reversed(list(enumerate(spans))):
        sums, _ = _summed(work, keys, span, values, starts.pop(), total=False)
        launch.read_vjp(work, queries, keys, span, w, values, sums, centres, dq, d_scale=d_scale)
        total = number > 0 or call.state_in is not None
        sums, d_state = _summed(work, queries, span, w, d_state, total=total)
        launch.read_vjp(work, keys, queries, span, values, w, sums, centres, dk)
        launch.read(work, keys, queries, span, values, w, sums, centres, dv, dc=dc)
    for to, x in zip(out[:3], (dq, dk, dv), strict=True):
        if to is not x:
            to.copy_(x)
    if d_scale is not None:
        out.head_scale.add_(d_scale.sum((0, 2), dtype=torch.float64))
    if dc is not None:
        out.log_decay.copy_(log_decay_grads(dc + rows_part(g, grads.g, call.groups), call.cu_seqlens_k))
    if call.state_in is not None and d_state is not None and centres is not None:
        out.state_in.copy_(from_kernels(d_state, work.shape, centres, adjoint=True))


def _centres(work: Launch, keys: Side, values: Values) -> Centres:
    """Return the means of the keys in the state, else of the first keys, and of their values."""
    if work.call.state_in is None:
        return launch.centre(work, keys, values)
    return mean_of(work.call.state_in, work.shape, work.products.dtype)


def _given(work: Launch, state: Tensor, centres: Centres, *, adjoint: bool) -> Tensor:
    return to_kernels(state.float(), work.shape, centres, adjoint=adjoint)


def _summed(
    work: Launch, side: Side, span: Span, values: Values, start: Tensor | None, *, total: bool, are_read: bool = True,
) -> tuple[Sums | None, Tensor | None]:  # fmt: skip
    """Return the sums that the other side reads in this span if `are_read`, and the total; None where not needed.

    A causal call reads those of each chunk, or in the dense form those that it starts from; others read the total.
    """
    if work.stores_chunks:
        return launch.summed(work, side, span, values, start, prefix=are_read, total=total)
    if not work.dense:
        return launch.summed(work, side, span, values, start, prefix=False, total=total, is_read=are_read)
    sums = None if start is None else launch.copied(work, start)
    return sums, launch.summed(work, side, span, values, start, prefix=False, total=True)[1] if total else None
