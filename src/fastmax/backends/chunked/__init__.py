"""Fastmax in plain PyTorch, on any device, for any order: executes a schedule on tiles, forward and adjoint."""

import torch
from torch import Tensor

from fastmax.backends.chunked import tiles as t
from fastmax.backends.chunked.parts import Work, masks_of, parts
from fastmax.backends.chunked.schedule import DROPOUT_CHUNK, Accumulate, Attend, Step, make_schedule
from fastmax.call import InputGrads, OutputGrads, Problem


def describe() -> str:
    return "plain PyTorch, any device, any order"


def unsupported(_: Problem) -> str | None:
    """Nothing is."""
    return None


def forward(p: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """o, g and state_out."""
    o, g, state = p.new_outputs()
    masks = masks_of(p)
    for part in parts(p, _heads_at_once(p)):
        state_out = part.of_states(state) if p.return_state else None
        _forward(part.work(p, masks), part.of_queries(o), part.of_queries(g), state_out)
    return o, g, state


def backward(p: Problem, o: Tensor, g: Tensor, grads: OutputGrads) -> InputGrads:
    """The gradients of the raw inputs."""
    out = InputGrads.empty(p)
    for x in out:
        x.zero_()
    masks = masks_of(p)
    for part in parts(p, _heads_at_once(p)):
        _backward(
            part.work(p, masks),
            part.of_queries(o),
            part.of_queries(g),
            OutputGrads(
                None if grads.o is None else part.of_queries(grads.o),
                None if grads.g is None else part.of_queries(grads.g),
                None if grads.state is None else part.of_states(grads.state),
            ),
            InputGrads(
                part.of_queries(out.q),
                part.of_keys(out.k),
                part.of_keys(out.v),
                out.head_scale if p.head_scale is None else out.head_scale[part.query_heads],
                out.state if p.state_in is None else part.of_states(out.state),
            ),
        )
    return out


def _heads_at_once(p: Problem) -> int:
    """So many key heads that a few hundred tokens of their features, or a tile of their dense weights, fit the budget."""
    drops_features = p.dropout_seed is not None and p.dropout_mode != "1d"
    queries, keys = (min(x.shape[2], DROPOUT_CHUNK if drops_features else t.DENSE_TILE) for x in (p.q, p.k))
    per_head = max(min(queries + keys, 128) * p.features, queries * keys, 1)
    return max(1, t.FEATURE_BUDGET // (p.groups * per_head))


def _steps(p: Work) -> list[Step]:
    return make_schedule(
        p.q.shape[2],
        p.k.shape[2],
        head_dim=p.head_dim,
        value_dim=p.value_dim,
        features=p.features,
        heads=p.q.shape[0] * p.q.shape[1],
        is_causal=p.is_causal,
        drops_features=p.drops_features,
        has_state=p.state_in is not None,
        return_state=p.return_state,
    )


def _state_from(p: Work, start: Tensor | None, steps: list[Step]) -> Tensor:
    """The state that a schedule starts from. Of size 0 where it has no use for one: that of order 4 is large."""
    if start is not None:
        return start.clone(memory_format=torch.contiguous_format)
    given = p.state_in is not None or p.return_state
    used = given or any(isinstance(step, Accumulate) or step.reads_state for step in steps)
    return p.q.new_zeros(*p.k.shape[:2], p.features if used else 0, p.value_dim + 1, dtype=p.dtype)


def _forward(p: Work, o: Tensor, g: Tensor, state_out: Tensor | None) -> None:
    steps = _steps(p)
    state = _state_from(p, p.state_in, steps)
    for step in steps:
        if isinstance(step, Accumulate):
            _accumulate_keys(p, state, step)
            continue
        for a, b in t.query_tiles(p, step):
            q_hat = t.load_queries(p, a, b)
            f = t.read(state, q_hat) if step.reads_state else t.zeros(q_hat, p.value_dim + 1)
            for c, d, diagonal in t.key_tiles(p, step, a, b):
                k_hat, u = t.load_keys(p, c, d)
                f += t.dense(q_hat, k_hat, u, p, diagonal)
            t.store_outputs(a, b, f, o, g)
    if state_out is not None:
        state_out.copy_(state)


def _backward(p: Work, o: Tensor, g: Tensor, grads: OutputGrads, out: InputGrads) -> None:
    """The adjoint of the schedule. `out` arrives as zeros."""
    steps = _steps(p)
    dk_hat, dv = (x if x.dtype == p.dtype else torch.zeros_like(x, dtype=p.dtype) for x in (out.k, out.v))
    state = _state_from(p, p.state_in, steps)
    for step in steps:
        if isinstance(step, Accumulate):
            _accumulate_keys(p, state, step)
            continue
        for a, b in t.query_tiles(p, step):
            q_hat, w = t.load_queries(p, a, b), t.load_output_grads(p, a, b, o, g, grads)
            dq_hat = t.read_vjp(state, q_hat, w) if step.reads_state else t.zeros(q_hat, p.head_dim)
            for c, d, diagonal in t.key_tiles(p, step, a, b):
                k_hat, u = t.load_keys(p, c, d)
                dq_tile, dk_tile, du_tile = t.dense_vjp(q_hat, k_hat, u, w, p, diagonal)
                dq_hat += dq_tile
                dk_hat[:, :, c:d] += dk_tile
                dv[:, :, c:d] += du_tile[..., :-1]
            t.store_query_grads(p, a, b, dq_hat, out.q, out.head_scale)
    d_state = _state_from(p, grads.state, steps)
    for step in reversed(steps):
        if isinstance(step, Attend):
            for a, b in t.query_tiles(p, step) if step.reads_state else ():
                q_hat, w = t.load_queries(p, a, b), t.load_output_grads(p, a, b, o, g, grads)
                t.accumulate(d_state, q_hat, w)
            continue
        for a, b in t.tiles(step.start, step.stop, t.feature_tile(p)):
            k_hat, u = t.load_keys(p, a, b)
            dk_hat[:, :, a:b] += t.read_vjp(d_state, k_hat, u)
            dv[:, :, a:b] += t.read(d_state, k_hat)[..., :-1]
    for a, b in t.tiles(0, p.k.shape[2], t.feature_tile(p)):
        t.store_key_grads(p, a, b, dk_hat, dv, out.k, out.v)
    if p.state_in is not None:
        out.state.copy_(d_state)


def _accumulate_keys(p: Work, state: Tensor, step: Accumulate) -> None:
    for a, b in t.tiles(step.start, step.stop, t.feature_tile(p)):
        k_hat, u = t.load_keys(p, a, b)
        t.accumulate(state, k_hat, u)
