"""Fastmax in plain PyTorch, on any device, for any order: executes a plan on tiles, forward and adjoint."""

from collections.abc import Iterator

import torch
from torch import Tensor

from fastmax.backends.chunked import tiles as t
from fastmax.backends.chunked.decay import Decay
from fastmax.backends.chunked.parts import Work, sequences
from fastmax.call import Call, InputGrads, OutputGrads
from fastmax.decay import log_decay_grads, rows_part
from fastmax.plan import DROPOUT_CHUNK, Accumulate, Attend, Plan, Step, calls_chunk, cheaper_form, steps


def describe() -> str:
    return "plain PyTorch, any device, any order"


def unsupported(_: Call) -> str | None:
    """Return None: this backend runs every call."""
    return None


def forward(call: Call, plan: Plan) -> tuple[Tensor, Tensor, Tensor]:
    """Return o, g and state_out."""
    o, g, state = call.new_outputs()
    masks = call.dropout_masks()
    for part in sequences(call, _heads_at_once(call, plan)):
        state_out = part.of_states(state) if call.options.return_state else None
        _forward(Work.of(part, call, plan, masks), part.of_queries(o), part.of_queries(g), state_out)
    return o, g, state


def backward(call: Call, plan: Plan, o: Tensor, g: Tensor, grads: OutputGrads) -> InputGrads:
    """Return the gradients of the raw inputs."""
    out = InputGrads.empty(call)
    for x in out:
        x.zero_()
    masks = call.dropout_masks()
    for part in sequences(call, _heads_at_once(call, plan)):
        work = Work.of(part, call, plan, masks)
        outputs = part.of_queries(o), part.of_queries(g)
        _backward(work, *outputs, part.of_output_grads(grads), part.of_input_grads(call, out))
    return out


def _heads_at_once(p: Call, plan: Plan) -> int:
    """Return how many key heads fit the budget, by their features of 128 tokens or their tile of dense weights."""
    tile = DROPOUT_CHUNK if p.drops_features else plan.dense_tile or t.DENSE_TILE
    queries, keys = (min(x.shape[2], tile) for x in (p.q, p.k))
    per_head = max(min(queries + keys, 128) * p.features, queries * keys, 1)
    return max(1, (plan.feature_budget or t.FEATURE_BUDGET) // (max(1, p.groups) * per_head))


def _steps(p: Work) -> list[Step]:
    """Return the steps of a call. If features are dropped, the dense form serves only inside causal chunks."""
    queries, keys, options = p.q.shape[2], p.k.shape[2], p.options
    form = p.plan.form or cheaper_form(queries, keys, p.head_dim, p.value_dim, options.order, options.is_causal)
    chunk = DROPOUT_CHUNK if p.drops_features else calls_chunk(p.features, p.q.shape[0] * p.q.shape[1])
    return steps(
        queries,
        keys,
        form="factorized" if p.drops_features else form,
        chunk=p.plan.chunk or chunk,
        is_causal=options.is_causal,
        has_state=p.state_in is not None,
        return_state=options.return_state,
    )


def _centre(p: Work, steps: list[Step]) -> Tensor | None:
    """Return the mean of the first keys that are summed, which no query before them reads. States are about zero."""
    if p.state_in is not None or p.options.return_state or p.drops_features:
        return None
    first = next((step for step in steps if isinstance(step, Accumulate)), None)
    return None if first is None or first.start == first.stop else t.mean_of_keys(p, first.start, first.stop)


def _state_from(p: Work, start: Tensor | None, steps: list[Step]) -> Tensor:
    """Return the state that a plan starts from, of size 0 if it needs none: that of order 4 is large."""
    if start is not None:
        return start.clone(memory_format=torch.contiguous_format)
    given = p.state_in is not None or p.options.return_state
    used = given or any(isinstance(step, Accumulate) or step.reads_state for step in steps)
    return p.q.new_zeros(*p.k.shape[:2], p.features if used else 0, p.value_dim + 1, dtype=p.dtype)


def _forward(p: Work, o: Tensor, g: Tensor, state_out: Tensor | None) -> None:
    steps = _steps(p)
    p.centre = _centre(p, steps)
    state = _state_from(p, p.state_in, steps)
    for step in steps:
        decay = Decay.of(p, step.start, step.stop)
        if isinstance(step, Accumulate):
            _accumulate_keys(p, state, step, decay)
            continue
        for a, b in t.query_tiles(p, step):
            q_hat = t.load_queries(p, a, b)
            f = _read_state(p, state, q_hat, decay) if step.reads_state else t.zeros(q_hat, p.value_dim + 1)
            for c, d, diagonal in t.key_tiles(p, step, a, b):
                k_hat, u = t.load_keys(p, c, d)
                f += t.dense(q_hat, k_hat, u, p, diagonal, decay)
            t.store_outputs(a, b, f, o, g)
    if state_out is not None:
        state_out.copy_(state)


def _backward(p: Work, o: Tensor, g: Tensor, grads: OutputGrads, out: InputGrads) -> None:
    """Run the adjoint of the plan. `out` arrives as zeros."""
    steps = _steps(p)
    p.centre = _centre(p, steps)
    dk_hat, dv = (x if x.dtype == p.dtype else torch.zeros_like(x, dtype=p.dtype) for x in (out.k, out.v))
    dc = None if p.log_decay is None else p.k.new_zeros(p.k.shape[:3], dtype=p.dtype)
    state = _state_from(p, p.state_in, steps)
    for step in steps:
        decay = Decay.of(p, step.start, step.stop)
        if isinstance(step, Accumulate):
            _accumulate_keys(p, state, step, decay)
            continue
        for a, b in t.query_tiles(p, step):
            q_hat, w = t.load_queries(p, a, b), t.load_output_grads(p, a, b, o, g, grads)
            if step.reads_state:
                faded = w if decay is None else t.faded(w, decay.of_queries(a, b), p)
                dq_hat = t.read_vjp(state, q_hat, faded)
            else:
                dq_hat = t.zeros(q_hat, p.head_dim)
            for c, d, diagonal in t.key_tiles(p, step, a, b):
                k_hat, u = t.load_keys(p, c, d)
                dq_tile, dk_tile, du_tile = t.dense_vjp(q_hat, k_hat, u, w, p, diagonal, decay)
                dq_hat += dq_tile
                dk_hat[:, :, c:d] += dk_tile
                dv[:, :, c:d] += du_tile[..., :-1]
                if dc is not None:
                    dc[:, :, c:d] -= (u * du_tile).sum(-1)
            t.store_query_grads(p, a, b, dq_hat, out.q, out.head_scale)
    d_state = _state_from(p, grads.state, steps)
    for step in reversed(steps):
        decay = Decay.of(p, step.start, step.stop)
        if isinstance(step, Attend):
            if step.reads_state:
                t.accumulate(d_state, _query_terms(p, step, decay, o, g, grads))
            continue
        for a, b in t.tiles(step.start, step.stop, t.feature_tile(p)):
            k_hat, u = t.load_keys(p, a, b)
            du = t.read(d_state, k_hat)
            if decay is not None and dc is not None:
                fading = decay.of_keys(a, b)
                du = du * fading
                dc[:, :, a:b] -= (u * du).sum(-1)
                u = u * fading
            dk_hat[:, :, a:b] += t.read_vjp(d_state, k_hat, u)
            dv[:, :, a:b] += du[..., :-1]
        if decay is not None:
            d_state *= decay.of_state()
    for a, b in t.tiles(0, p.k.shape[2], t.feature_tile(p)):
        t.store_key_grads(p, a, b, dk_hat, dv, out.k, out.v)
    if dc is not None:
        out.log_decay.copy_(log_decay_grads(dc + rows_part(g, grads.g, p.groups)))
    if p.state_in is not None:
        out.state_in.copy_(d_state)


def _read_state(p: Work, state: Tensor, q_hat: t.Tile, decay: Decay | None) -> Tensor:
    f = t.read(state, q_hat)
    return f if decay is None else t.faded(f, decay.of_queries(q_hat.a, q_hat.b), p)


def _accumulate_keys(p: Work, state: Tensor, step: Accumulate, decay: Decay | None) -> None:
    if decay is not None:
        state *= decay.of_state()
    t.accumulate(state, _key_terms(p, step, decay))


def _key_terms(p: Work, step: Accumulate, decay: Decay | None) -> Iterator[tuple[t.Tile, Tensor]]:
    for a, b in t.tiles(step.start, step.stop, t.feature_tile(p)):
        k_hat, u = t.load_keys(p, a, b)
        yield k_hat, u if decay is None else u * decay.of_keys(a, b)


def _query_terms(
    p: Work, step: Attend, decay: Decay | None, o: Tensor, g: Tensor, grads: OutputGrads
) -> Iterator[tuple[t.Tile, Tensor]]:
    for a, b in t.query_tiles(p, step):
        q_hat, w = t.load_queries(p, a, b), t.load_output_grads(p, a, b, o, g, grads)
        yield q_hat, w if decay is None else t.faded(w, decay.of_queries(a, b), p)
