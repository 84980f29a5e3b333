"""Forward and backward of one call: the kernels on span after span, the state handed on in fp32."""

import torch
from torch import Tensor

from fastmax.backends.triton import launch
from fastmax.backends.triton.launch import Sums, Values
from fastmax.backends.triton.states import Centres, from_kernels, mean_of
from fastmax.backends.triton.work import Launch, Side, Stretch
from fastmax.call import InputGrads, OutputGrads
from fastmax.decay import log_decay_grads, rows_part


def forward(work: Launch, o: Tensor, g: Tensor, state_out: Tensor | None) -> None:
    queries, keys = (launch.normalized(work, are_queries=x) for x in (True, False))
    values = launch.new_values(work, keys)
    state = work.call.state_in
    spans = work.spans()
    for number, span in enumerate(spans):
        total = state_out is not None or number + 1 < len(spans)
        centres = _centres(work, keys, span, values, state, needed=total)
        sums, after = _summed(work, keys, span, values, centres, state, total=total)
        launch.read(work, queries, keys, span, values._replace(x_of_state=queries.hat), values, sums, centres, o, g=g)
        state = after
    if state_out is not None and state is not None:
        state_out.copy_(state)


def backward(work: Launch, o: Tensor, g: Tensor, grads: OutputGrads, out: InputGrads) -> None:
    """Walk the spans in reverse. If there are several, sum the states that they start from again first."""
    call = work.call
    queries, keys = (launch.normalized(work, are_queries=x) for x in (True, False))
    values, w = launch.new_values(work, keys), launch.new_output_grads(work, queries)
    spans = work.spans()
    starts = [call.state_in]
    for span in spans[:-1]:
        centres = _centres(work, keys, span, values, starts[-1], needed=True)
        starts.append(_summed(work, keys, span, values, centres, starts[-1], total=True, chunks=False)[1])
    dq, dk, dv = (x if x.stride(3) == 1 or x.shape[3] == 1 else x.new_empty(x.shape) for x in out[:3])
    d_scale = None if call.head_scale is None else torch.empty(call.q.shape[:3], device=work.device)
    dc = None if call.log_decay is None else torch.empty(call.k.shape[:3], device=work.device)
    d_state = grads.state
    for number, span in reversed(list(enumerate(spans))):
        total = number > 0 or call.state_in is not None
        needed = total or d_state is not None
        centres = _centres(work, keys, span, values, starts[number], needed=needed)
        sums, _ = _summed(work, keys, span, values, centres, starts[number], total=False)
        launch.output_grads(work, queries, span, w, o, g, grads.o, grads.g, centres)
        launch.read_vjp(work, queries, keys, span, w, values, sums, centres, dq, d_scale=d_scale)
        sums, d_state = _summed(work, queries, span, w, centres, d_state, total=total)
        launch.read_vjp(work, keys, queries, span, values, w, sums, centres, dk)
        launch.read(work, keys, queries, span, values, w, sums, centres, dv, dc=dc)
    for to, x in zip(out[:3], (dq, dk, dv), strict=True):
        if to is not x:
            to.copy_(x)
    if d_scale is not None:
        out.head_scale.copy_(d_scale.sum((0, 2), dtype=torch.float64))
    if dc is not None:
        out.log_decay.copy_(log_decay_grads(dc + rows_part(g, grads.g, call.groups), call.cu_seqlens_k))
    if call.state_in is not None and d_state is not None:
        out.state_in.copy_(d_state)


def _centres(
    work: Launch, keys: Side, span: Stretch, values: Values, state: Tensor | None, *, needed: bool
) -> Centres | None:
    """Return the means of the keys in the state, else of the first keys, and of their values; None if no sum is taken."""
    if work.dense and state is None and not needed:
        return None
    if state is None:
        centres = Centres(*(launch.centre(work, keys, span, values=x) for x in (False, True)))
    else:
        centres = mean_of(state, work.shape, work.products.dtype)
    launch.centre_keys(work, keys, span, values, centres)
    return centres


def _summed(
    work: Launch, side: Side, span: Stretch, values: Values, centres: Centres | None, start: Tensor | None, *, total: bool,
    chunks: bool = True,
) -> tuple[Sums | None, Tensor | None]:  # fmt: skip
    """Return the sums that the other side reads in this span, and `total` in the public order; None where not needed."""
    stored = chunks and work.is_causal and (work.stores_chunks or start is not None)
    total_is_read = chunks and not work.is_causal and not work.dense
    if centres is None or not (stored or total or total_is_read):
        return None, None
    sums, ends = launch.accumulate(
        work, side, span, values, centres, start, chunks=stored, total=total or total_is_read
    )
    after = from_kernels(*ends, work.shape, centres, adjoint=side.are_queries) if total else None
    if total_is_read:
        sums = Sums(ends[0].to(work.products.dtype), ends[1], True)
    return sums if stored or total_is_read else None, after
