"""One function per kernel: its buffers, its grid, its arguments. Kernels are imported here when they are first launched."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastmax.backends.triton.slots import ceil_div
from fastmax.backends.triton.states import Centres, to_kernels
from fastmax.backends.triton.work import Launch, Side, Stretch, channels_last
from fastmax.core import EPS

CENTRE_TOKENS = 1024
"""Maximum number of tokens that a centre is the mean of. It only has to be near them."""


def rows_of(channels: int) -> int:
    """Return the rows of a program that only loads and stores: as many as the registers hold."""
    return 64 if channels <= 64 else 32


class Values(NamedTuple):
    """The values that are summed with phi: [v, 1] of keys, or w of queries; `of_state`: centred and faded, for states.

    Queries add f(b) and f'(b) times their values to the sums of degree 0 and 1.
    """

    a: Tensor
    last: Tensor
    x_of_state: Tensor
    a_of_state: Tensor
    last_of_state: Tensor
    f0: Tensor
    f1: Tensor


@dataclass(frozen=True)
class Sums:
    """The sums of each slot, and whether that of the first (of queries: the last) chunk is not empty."""

    s: Tensor
    z: Tensor
    has_in: bool


def normalized(work: Launch, *, are_queries: bool) -> Side:
    from fastmax.backends.triton.kernels.normalize import normalize

    call, seq = work.call, work.sequences
    x = channels_last(call.q if are_queries else call.k)
    batch, heads, tokens, channels = x.shape
    out = torch.empty(batch, heads, tokens, work.shape.d, device=work.device, dtype=work.products.dtype)
    rows = rows_of(work.shape.d)
    if out.numel():
        with _on(work):
            normalize[(ceil_div(tokens, rows) * batch * heads,)](
                x, work.counts, work.head_scale, out, tokens, heads, *x.stride()[:3], call.scale if are_queries else 1.0,
                DR=channels, D=work.shape.d, BT=rows, NORM=call.options.normalize, EPS=EPS,
                MASKED=work.masked and not are_queries, SCALED=are_queries and call.head_scale is not None,
            )  # fmt: skip
    return Side(x, out, seq.cu_q if are_queries else seq.cu_k, are_queries)


def centre(work: Launch, keys: Side, span: Stretch, *, values: bool) -> Tensor:
    """Return the mean of the normalized keys, or of their values: of the first ones if causal, else of a sample."""
    from fastmax.backends.triton.kernels.centre import centre

    x = work.v if values else keys.hat
    dim, d = (work.shape.value_dim, work.shape.dv) if values else (work.shape.d, work.shape.d)
    out = torch.zeros(work.sequences.count, work.key_heads, d, device=work.device)
    if out.numel():
        with _on(work):
            centre[(work.sequences.count * work.key_heads,)](
                x, work.counts, out, keys.cu, x.shape[2], span.start, span.keys, min(CENTRE_TOKENS, work.chunk),
                work.key_heads, *x.stride()[:3], DR=dim, D=d, BT=rows_of(d), SPREAD=not work.is_causal,
                PACKED=work.sequences.packed, MASKED=work.masked, DT=work.products.language,
            )  # fmt: skip
    return out


def new_values(work: Launch, keys: Side) -> Values:
    """Allocate the values of keys. `centre_keys` fills the part for the state, span by span."""
    state = torch.empty(*work.v.shape[:3], work.shape.dv, device=work.device, dtype=work.products.dtype)
    last = torch.empty_like(work.counts)
    return Values(work.v, work.counts, torch.empty_like(keys.hat), state, last, work.none, work.none)


def centre_keys(work: Launch, keys: Side, span: Stretch, values: Values, centres: Centres) -> None:
    from fastmax.backends.triton.kernels.centre_keys import centre_keys

    size = rows_of(max(work.shape.d, work.shape.dv))
    rows = work.sequences.tiles(size, span.keys, of_queries=False)
    if rows.number * work.key_heads:
        with _on(work):
            centre_keys[(rows.number, work.key_heads)](
                keys.hat, work.v, work.counts, work.none if work.fading is None else work.fading.from_here, *centres,
                values.x_of_state, values.a_of_state, values.last_of_state, rows.owner, rows.first, keys.cu, work.v.shape[2],
                span.start, span.keys, rows.per_sequence, *work.v.stride()[:3],
                D=work.shape.d, DVR=work.shape.value_dim, DV=work.shape.dv, BT=size, PACKED=work.sequences.packed,
                DECAY=work.fading is not None,
            )  # fmt: skip


def new_output_grads(work: Launch, queries: Side) -> Values:
    """Allocate w of queries. `output_grads` fills it, span by span."""
    batch, heads, tokens, _ = work.call.q.shape
    w = torch.empty(batch, heads, tokens, work.shape.dv, device=work.device, dtype=work.products.dtype)
    last, last_of_state, f0, f1 = (torch.empty(batch, heads, tokens, device=work.device) for _ in range(4))
    return Values(w, last, queries.hat, w if work.fading is None else torch.empty_like(w), last_of_state, f0, f1)


def output_grads(
    work: Launch, queries: Side, span: Stretch, w: Values, o: Tensor, g: Tensor, do: Tensor | None, dg: Tensor | None,
    centres: Centres | None,
) -> None:  # fmt: skip
    """Fill w for one span. `centres` are None where no state is read."""
    from fastmax.backends.triton.kernels.output_grads import output_grads

    size = rows_of(max(work.shape.d, work.shape.dv))
    rows = work.sequences.tiles(size, span.queries, of_queries=True)
    heads, tokens = work.call.q.shape[1:3]
    given_o, given_g = o if do is None else channels_last(do), g if dg is None else dg
    if rows.number * heads:
        with _on(work):
            output_grads[(rows.number, heads)](
                o, g, given_o, given_g, queries.hat, work.none if work.fading is None else work.fading.until_here,
                *(centres or (work.none, work.none)), w.a, w.last, w.a_of_state, w.last_of_state, w.f0, w.f1, rows.owner,
                rows.first, queries.cu, tokens, span.start, span.queries, rows.per_sequence,
                *o.stride()[:3], *g.stride(), *given_o.stride()[:3], *given_g.stride(),
                D=work.shape.d, DVR=work.shape.value_dim, DV=work.shape.dv, ORDER=work.shape.order, BT=size,
                GROUPS=work.call.groups, PACKED=work.sequences.packed, HAS_DO=do is not None, HAS_DG=dg is not None,
                STATE=centres is not None, DECAY=work.fading is not None,
            )  # fmt: skip


def accumulate(
    work: Launch, side: Side, span: Stretch, values: Values, centres: Centres, start: Tensor | None, *, chunks: bool,
    total: bool,
) -> tuple[Sums, tuple[Tensor, Tensor]]:  # fmt: skip
    """Sum S of keys or T of queries: of all chunks, the total in fp32, or both. `start` is in the public order."""
    from fastmax.backends.triton.kernels.accumulate import accumulate

    shape, tiles, count, heads = work.shape, work.tiles, work.sequences.count, work.key_heads
    none = work.none, work.none
    slots, ends = span.chunks.number if chunks else 0, count if total else 0
    s = torch.empty(slots, heads, shape.rows, shape.dv, device=work.device, dtype=work.products.dtype)
    z = torch.empty(slots, heads, shape.column, device=work.device)
    s_out = torch.empty(ends, heads, shape.rows, shape.dv, device=work.device)
    z_out = torch.empty(ends, heads, shape.column, device=work.device)
    given = none if start is None else to_kernels(start.float(), shape, centres, adjoint=side.are_queries)
    blocks = shape.d // shape.block
    pairs = blocks * (blocks + 1) // 2 * (shape.block // tiles.sums) if shape.order == 2 else 0
    if count * heads:
        with _on(work):
            accumulate[((pairs + 1 + blocks) * count * heads,)](
                values.x_of_state, values.a_of_state, values.last_of_state, values.f0, values.f1, work.of_chunk(span), s, z,
                *given, s_out, z_out,
                side.cu, span.chunks.first, side.hat.shape[2], span.start, side.length(span), work.chunk, heads,
                **shape.constants, G=tiles.sums, BT=tiles.tokens,
                GROUPS=work.call.groups if side.are_queries else 1, REVERSE=side.are_queries, PACKED=work.sequences.packed,
                DECAY=work.fading is not None, STORE=chunks, HAS_IN=start is not None, HAS_OUT=total,
                PRECISION=work.products.precision, num_warps=tiles.sum_warps, num_stages=tiles.stages,
            )  # fmt: skip
    return Sums(s, z, start is not None), (s_out, z_out)


def read(
    work: Launch, rows: Side, columns: Side, span: Stretch, own: Values, values: Values, sums: Sums | None,
    centres: Centres | None, out: Tensor, *, g: Tensor | None = None, dc: Tensor | None = None,
) -> None:  # fmt: skip
    """Compute o and g of queries or, if rows are keys and the values are w, the gradient of the values (and of c)."""
    from fastmax.backends.triton.kernels.read import read

    tiles, shape, forward = work.tiles, work.shape, rows.are_queries
    table = work.sequences.tiles(tiles.rows, rows.length(span), of_queries=forward)
    heads = rows.hat.shape[1]
    none = work.none
    if table.number * heads:
        with _on(work):
            read[(table.number, heads)](
                rows.hat, own.x_of_state, columns.hat, values.a, values.last, *(centres or (none, none)), *_read(work, sums),
                *_fade(work, forward), out, none if g is None else g, work.v, work.counts, none if dc is None else dc,
                table.owner, table.first, span.chunks.first, rows.cu, columns.cu, rows.hat.shape[2], columns.hat.shape[2],
                span.start, rows.length(span), columns.length(span), table.per_sequence, work.chunk, work.key_heads,
                *values.a.stride()[:3], *out.stride()[:3], *work.v.stride()[:3],
                **_flags(work, sums), DVR=shape.value_dim, U=tiles.unroll, BT=tiles.rows, BS=tiles.columns,
                REVERSE=not forward, FORWARD=forward, num_warps=tiles.warps, num_stages=tiles.stages,
            )  # fmt: skip


def read_vjp(
    work: Launch, rows: Side, columns: Side, span: Stretch, own: Values, other: Values, sums: Sums | None,
    centres: Centres | None, out: Tensor, *, d_scale: Tensor | None = None,
) -> None:  # fmt: skip
    """Compute the gradient of the raw rows and, on request, that of the scale of each head: (B, H, N), to be summed."""
    from fastmax.backends.triton.kernels.read_vjp import read_vjp

    tiles, shape, options = work.tiles, work.shape, work.call.options
    table = work.sequences.tiles(tiles.vjp_rows, rows.length(span), of_queries=rows.are_queries)
    heads = rows.hat.shape[1]
    none = work.none
    if table.number * heads:
        with _on(work):
            read_vjp[(table.number, heads)](
                rows.hat, own.x_of_state, own.a, own.last, own.a_of_state, own.last_of_state, columns.hat, other.a,
                other.last, none if centres is None else centres.x, *_read(work, sums),
                *_fade(work, rows.are_queries)[1:], rows.raw, work.head_scale, out, none if d_scale is None else d_scale,
                table.owner, table.first, span.chunks.first, rows.cu, columns.cu, rows.hat.shape[2], columns.hat.shape[2],
                span.start, rows.length(span), columns.length(span), table.per_sequence, work.chunk, work.key_heads,
                *own.a.stride()[:3], *other.a.stride()[:3], *rows.raw.stride()[:3], *out.stride()[:3],
                work.call.scale if rows.are_queries else 1.0,
                **_flags(work, sums), DR=shape.dim, DVR=shape.value_dim, U=tiles.vjp_unroll, BT=tiles.vjp_rows,
                BS=tiles.vjp_columns, REVERSE=not rows.are_queries, QUERIES=rows.are_queries, SCALED=d_scale is not None,
                NORM=options.normalize, EPS=EPS, num_warps=tiles.vjp_warps, num_stages=tiles.vjp_stages,
            )  # fmt: skip


def _flags(work: Launch, sums: Sums | None) -> dict[str, Any]:
    """Return the compile-time constants that `read` and `read_vjp` share."""
    shape = work.shape
    return {
        **shape.constants,
        "GROUPS": work.call.groups,
        "CAUSAL": work.is_causal,
        "STATE": sums is not None,
        "HAS_IN": sums is not None and sums.has_in,
        "DENSE": work.is_causal or work.dense,
        "PACKED": work.sequences.packed,
        "MASKED": work.masked,
        "DECAY": work.fading is not None,
        "PRECISION": work.products.precision,
    }


def _read(work: Launch, sums: Sums | None) -> tuple[Tensor, Tensor]:
    return (work.none, work.none) if sums is None else (sums.s, sums.z)


def _fade(work: Launch, are_queries: bool) -> tuple[Tensor, Tensor, Tensor]:
    fade = work.fading
    if fade is None:
        return work.none, work.none, work.none
    return fade.until_here if are_queries else fade.from_here, fade.high, fade.low


def _on(work: Launch) -> AbstractContextManager[Any]:
    """Select the device of the tensors for Triton's launches."""
    return torch.cuda.device(work.device) if work.device.type == "cuda" else nullcontext()
