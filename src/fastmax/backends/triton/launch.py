"""One function per kernel: its buffers, its grid, its arguments. Kernels are imported here when they are first launched."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastmax.backends.triton.slots import Pieces, ceil_div
from fastmax.backends.triton.states import Centres
from fastmax.backends.triton.work import Fading, Launch, Side, Span, channels_last
from fastmax.core import EPS
from fastmax.decay import STRONGEST

CENTRE_TOKENS = 1024
"""Maximum number of tokens that a centre is the mean of. It only has to be near them."""

SCANNED = 1024
"""Numbers of a state that a program of `scan` adds up."""


def rows_of(channels: int) -> int:
    """Return the rows of a program that only loads and stores: as many as the registers hold."""
    return 64 if channels <= 64 else 32


class Values(NamedTuple):
    """The values that are summed with phi: [v, 1] of keys, or w of queries; `of_state`: centred and faded, for states.

    Queries add f(b) and f'(b) times their values to the sums of degree 0 and 1. The ones of keys are stored if they differ
    (`is_weighted`).
    """

    a: Tensor
    last: Tensor
    x_of_state: Tensor
    a_of_state: Tensor
    last_of_state: Tensor
    f0: Tensor
    f1: Tensor
    is_weighted: bool
    fading: Fading | None


@dataclass(frozen=True)
class Sums:
    """The sums that rows read, of each chunk if `of_chunks`; `has_in` if the first (of queries: the last) reads some."""

    s: Tensor
    z: Tensor
    has_in: bool
    of_chunks: bool


def queries(work: Launch) -> Side:
    return _normalized(work, are_queries=True)[0]


def keys(work: Launch) -> tuple[Side, Values]:
    """Return keys and their values, for the dense form. `centred` adds what states need."""
    side, v, counts = _normalized(work, are_queries=False)
    none = work.none
    return side, Values(v, counts, none, none, none, none, none, work.masked or work.decays, _fading(work))


def _normalized(work: Launch, *, are_queries: bool) -> tuple[Side, Tensor, Tensor]:
    from fastmax.backends.triton.kernels.normalize import normalize

    call, shape, masked = work.call, work.shape, work.masked and not are_queries
    x, v = channels_last(call.q if are_queries else call.k), channels_last(call.v)
    batch, heads, tokens, channels = x.shape
    out = torch.empty(batch, heads, tokens, shape.d, device=work.device, dtype=work.products.dtype)
    values, counts, mask = work.none, work.none, work.none
    strides, aligned = _strides(x) if are_queries else _strides(x, v)
    if are_queries:
        strides += [0, 0, 0]
    else:
        values = torch.empty(batch, heads, tokens, shape.dv, device=work.device, dtype=work.products.dtype)
    if masked and call.key_mask is not None:
        mask = call.key_mask.expand(batch, heads, tokens)
        counts = torch.empty(batch, heads, tokens, device=work.device)
    rows = rows_of(shape.d if are_queries else max(shape.d, shape.dv))
    if out.numel():
        with _on(work):
            normalize[(ceil_div(tokens, rows) * batch * heads,)](
                x, v, mask, work.head_scale, out, values, counts, tokens, heads, *strides,
                *(mask.stride() if masked else (0, 0, 0)), call.scale if are_queries else 1.0,
                DR=channels, D=shape.d, DVR=shape.value_dim, DV=shape.dv, BT=rows, NORM=call.options.normalize, EPS=EPS,
                KEYS=not are_queries, MASKED=masked, SCALED=are_queries and call.head_scale is not None, ALIGNED=aligned,
            )  # fmt: skip
    return Side(x, out, work.sequences.cu(of_queries=are_queries), are_queries), values, counts


def _fading(work: Launch) -> Fading | None:
    from fastmax.backends.triton.kernels.fade import fade

    decays = work.call.log_decay
    if decays is None:
        return None
    seq, tokens = work.sequences, decays.shape[2]
    found = Fading(*(torch.empty(decays.shape, device=work.device) for _ in range(4)))
    chunks = seq.chunks(work.chunk, tokens)
    if decays.numel():
        with _on(work):
            fade[(chunks.number, work.key_heads)](
                decays, *found, seq.cu_k, tokens, work.chunk, chunks.per_sequence, seq.count, *decays.stride(),
                BT=128, PACKED=seq.packed, STRONGEST=STRONGEST[decays.dtype],
            )  # fmt: skip
    return found


def centre(work: Launch, side: Side, values: Values) -> Centres:
    """Return the means of the normalized keys and of their values: of the first ones if causal, else of a sample."""
    from fastmax.backends.triton.kernels.centre import centre

    seq, shape = work.sequences, work.shape
    found = Centres(*(torch.empty(seq.count, work.key_heads, n, device=work.device) for n in (shape.d, shape.dv)))
    if found.x.numel():
        with _on(work):
            centre[(seq.count, work.key_heads)](
                side.hat, values.a, values.last, *found, side.cu, side.hat.shape[2], min(CENTRE_TOKENS, work.chunk),
                D=shape.d, DV=shape.dv, BT=rows_of(max(shape.d, shape.dv)), SPREAD=not work.is_causal, PACKED=seq.packed,
                MASKED=work.masked,
            )  # fmt: skip
    return found


def centred(work: Launch, side: Side, values: Values, centres: Centres) -> Values:
    """Return the values of keys with what states need."""
    from fastmax.backends.triton.kernels.centre_keys import centre_keys

    fading, seq, shape = values.fading, work.sequences, work.shape
    x, a = torch.empty_like(side.hat), torch.empty_like(values.a)
    last = values.last if fading is None else torch.empty(side.hat.shape[:3], device=work.device)
    size = rows_of(max(shape.d, shape.dv))
    rows = seq.tiles(size, side.hat.shape[2])
    if rows.number * work.key_heads:
        with _on(work):
            centre_keys[(rows.number, work.key_heads)](
                side.hat, values.a, values.last, work.none if fading is None else fading.from_here, *centres, x, a, last,
                side.cu, side.hat.shape[2], rows.per_sequence, seq.count,
                D=shape.d, DV=shape.dv, BT=size, PACKED=seq.packed, MASKED=work.masked, DECAY=fading is not None,
            )  # fmt: skip
    return values._replace(x_of_state=x, a_of_state=a, last_of_state=last)


def output_grads(
    work: Launch, side: Side, o: Tensor, g: Tensor, do: Tensor | None, dg: Tensor | None, centres: Centres | None,
    fading: Fading | None,
) -> Values:  # fmt: skip
    """Return w of queries. `centres` are None where no state is read."""
    from fastmax.backends.triton.kernels.output_grads import output_grads

    seq, shape, (batch, heads, tokens, _) = work.sequences, work.shape, work.call.q.shape
    w = torch.empty(batch, heads, tokens, shape.dv, device=work.device, dtype=work.products.dtype)
    last, last_of_state, f0, f1 = (torch.empty(batch, heads, tokens, device=work.device) for _ in range(4))
    of_state = w if fading is None else torch.empty_like(w)
    size = rows_of(max(shape.d, shape.dv))
    rows = seq.tiles(size, tokens)
    o, given_o = channels_last(o), channels_last(o if do is None else do)
    g, given_g = (x if x.stride(2) == 1 else x.contiguous() for x in (g, g if dg is None else dg))
    strides, aligned = _strides(o, given_o)
    if rows.number * heads:
        with _on(work):
            output_grads[(rows.number, heads)](
                o, given_o, g, given_g, side.hat, work.none if fading is None else fading.until_here,
                *(centres or (work.none, work.none)), w, last, of_state, last_of_state, f0, f1, side.cu, tokens,
                rows.per_sequence, seq.count, *strides, *g.stride()[:2], *given_g.stride()[:2],
                D=shape.d, DVR=shape.value_dim, DV=shape.dv, ORDER=shape.order, BT=size, GROUPS=work.call.groups,
                PACKED=seq.packed, HAS_DO=do is not None, HAS_DG=dg is not None, STATE=centres is not None,
                DECAY=fading is not None, ALIGNED=aligned,
            )  # fmt: skip
    return Values(w, last, side.hat, of_state, last_of_state, f0, f1, True, fading)


def summed(
    work: Launch, side: Side, span: Span, values: Values, start: Tensor | None, *, prefix: bool, total: bool,
    is_read: bool = False,
) -> tuple[Sums | None, Tensor | None]:  # fmt: skip
    """Sum S of keys or T of queries, from `start` on.

    Return the sums before each chunk (of queries: after it) if `prefix`, or that of the sequence if `is_read`. The second is
    the `total`, in fp32.
    """
    from fastmax.backends.triton.kernels.accumulate import accumulate

    shape, tiles, seq, heads = work.shape, work.tiles, work.sequences, work.key_heads
    of_chunks = work.stores_chunks
    if of_chunks and not total and not (prefix and (start is not None or span.longest > work.piece)):
        return None, None  # a sequence of one chunk sees itself densely
    sums = torch.empty(span.chunks.number, heads, shape.size, device=work.device)
    blocks = shape.d // shape.block
    pairs = blocks * (blocks + 1) // 2 * (shape.block // tiles.sums) if shape.order == 2 else 0
    if sums.numel():
        with _on(work):
            accumulate[((pairs + 1 + blocks) * span.chunks.number, heads)](
                values.x_of_state, values.a_of_state, values.last_of_state, values.f0, values.f1, sums,
                side.cu, seq.cu(of_queries=not side.are_queries),
                side.hat.shape[2], span.start, side.length(span), span.longest, work.piece, tiles.chunk,
                span.chunks.per_sequence, seq.count, heads,
                **shape.constants, G=tiles.sums, BT=tiles.tokens, GROUPS=work.call.groups if side.are_queries else 1,
                REVERSE=side.are_queries, PACKED=seq.packed, WEIGHTED=values.is_weighted, SKIP=of_chunks and not total,
                RENEW=not of_chunks, PRECISION=work.products.precision, EMULATED=work.products.emulated,
                num_warps=tiles.sum_warps, num_stages=tiles.stages,
            )  # fmt: skip
    return _scanned(work, side, span, values, sums, start, prefix=prefix, total=total, is_read=is_read)


def copied(work: Launch, start: Tensor) -> Sums:
    """Return a state that every row of its sequence reads."""
    body = work.shape.body
    return Sums(start[..., :body].to(work.products.dtype).contiguous(), start[..., body:].contiguous(), True, False)


def _scanned(
    work: Launch, side: Side, span: Span, values: Values, sums: Tensor, start: Tensor | None, *, prefix: bool, total: bool,
    is_read: bool,
) -> tuple[Sums | None, Tensor | None]:  # fmt: skip
    from fastmax.backends.triton.kernels.scan import scan

    shape, seq, heads = work.shape, work.sequences, work.key_heads
    slots = span.chunks.number if prefix else seq.count if is_read else 0
    s = torch.empty(slots, heads, shape.body, device=work.device, dtype=work.products.dtype)
    z = torch.empty(slots, heads, shape.size - shape.body, device=work.device)
    out = torch.empty(seq.count if total else 0, heads, shape.size, device=work.device)
    programs = (ceil_div(shape.body, SCANNED) + ceil_div(shape.size - shape.body, SCANNED)) * seq.count
    if programs * heads:
        with _on(work):
            scan[(programs, heads)](
                sums, work.none if values.fading is None else values.fading.until_here, work.none if start is None else start,
                s, z, out, side.cu, seq.cu(of_queries=not side.are_queries),
                side.hat.shape[2], span.start, side.length(span), span.longest, work.piece, span.chunks.per_sequence, heads,
                BODY=shape.body, SIZE=shape.size, E=SCANNED, REVERSE=side.are_queries, PACKED=seq.packed,
                DECAY=values.fading is not None, PREFIX=work.stores_chunks, STORE=slots > 0, HAS_IN=start is not None,
                HAS_OUT=total,
            )  # fmt: skip
    stored = Sums(s, z, start is not None, prefix) if prefix or is_read else None
    return stored, out if total else None


def read(
    work: Launch, rows: Side, columns: Side, span: Span, own: Values, values: Values, sums: Sums | None,
    centres: Centres | None, out: Tensor, *, g: Tensor | None = None, dc: Tensor | None = None,
) -> None:  # fmt: skip
    """Compute o and g of queries or, if rows are keys and the values are w, the gradient of the values (and of c)."""
    from fastmax.backends.triton.kernels.read import read

    tiles, shape, forward, none = work.tiles, work.shape, rows.are_queries, work.none
    table = work.sequences.tiles(tiles.rows, rows.length(span))
    heads = rows.hat.shape[1]
    strides, aligned = _strides(out)
    if table.number * heads:
        with _on(work):
            read[(table.number, heads)](
                rows.hat, own.x_of_state, columns.hat, values.a, values.last, *(centres or (none, none)), *_read(work, sums),
                *_fade(work, own.fading, forward), out, none if g is None else g, own.a, own.last, none if dc is None else dc,
                *_places(work, rows, columns, span, table), *strides,
                **_flags(work, sums), DVR=shape.value_dim, U=tiles.unroll, BT=tiles.rows, BS=tiles.columns,
                REVERSE=not forward, FORWARD=forward, ALIGNED=aligned, num_warps=tiles.warps, num_stages=tiles.stages,
            )  # fmt: skip


def read_vjp(
    work: Launch, rows: Side, columns: Side, span: Span, own: Values, other: Values, sums: Sums | None,
    centres: Centres | None, out: Tensor, *, d_scale: Tensor | None = None,
) -> None:  # fmt: skip
    """Compute the gradient of the raw rows and, on request, that of the scale of each head: (B, H, N), to be summed."""
    from fastmax.backends.triton.kernels.read_vjp import read_vjp

    tiles, shape, options, none = work.tiles, work.shape, work.call.options, work.none
    table = work.sequences.tiles(tiles.vjp_rows, rows.length(span))
    heads = rows.hat.shape[1]
    strides, aligned = _strides(rows.raw, out)
    if table.number * heads:
        with _on(work):
            read_vjp[(table.number, heads)](
                rows.hat, own.x_of_state, own.a, own.last, own.a_of_state, own.last_of_state, columns.hat, other.a,
                other.last, none if centres is None else centres.x, *_read(work, sums),
                *_fade(work, own.fading, rows.are_queries)[1:], rows.raw, work.head_scale, out,
                none if d_scale is None else d_scale, *_places(work, rows, columns, span, table), *strides,
                work.call.scale if rows.are_queries else 1.0,
                **_flags(work, sums), DR=shape.dim, U=tiles.vjp_unroll, BT=tiles.vjp_rows, BS=tiles.vjp_columns,
                REVERSE=not rows.are_queries, QUERIES=rows.are_queries, SCALED=d_scale is not None,
                NORM=options.normalize, EPS=EPS, ALIGNED=aligned, num_warps=tiles.vjp_warps, num_stages=tiles.vjp_stages,
            )  # fmt: skip


def _places(work: Launch, rows: Side, columns: Side, span: Span, table: Pieces) -> tuple[Any, ...]:
    """Return the arguments by which the programs of `read` and `read_vjp` find their rows and columns."""
    return (
        rows.cu, columns.cu, rows.hat.shape[2], columns.hat.shape[2], span.start, rows.length(span), columns.length(span),
        table.per_sequence, work.sequences.count, work.chunk, span.chunks.per_sequence, work.key_heads,
    )  # fmt: skip


def _flags(work: Launch, sums: Sums | None) -> dict[str, Any]:
    """Return the compile-time constants that `read` and `read_vjp` share."""
    return {
        **work.shape.constants,
        "GROUPS": work.call.groups,
        "CAUSAL": work.is_causal,
        "STATE": sums is not None,
        "PREFIX": sums is not None and sums.of_chunks,
        "HAS_IN": sums is not None and sums.has_in,
        "DENSE": work.is_causal or work.dense,
        "PACKED": work.sequences.packed,
        "MASKED": work.masked,
        "DECAY": work.decays,
        "PRECISION": work.products.precision,
        "EMULATED": work.products.emulated,
    }


def _read(work: Launch, sums: Sums | None) -> tuple[Tensor, Tensor]:
    return (work.none, work.none) if sums is None else (sums.s, sums.z)


def _fade(work: Launch, fading: Fading | None, are_queries: bool) -> tuple[Tensor, Tensor, Tensor]:
    if fading is None:
        return work.none, work.none, work.none
    return fading.until_here if are_queries else fading.from_here, fading.high, fading.low


def _strides(*tensors: Tensor) -> tuple[list[int], bool]:
    """Return the strides of (B, H, N, channels), and whether all are multiples of 16: then they are divided by it.

    Kernels are compiled for that alone, so that a new length compiles nothing.
    """
    found = [x.stride(i) if x.shape[i] > 1 else 0 for x in tensors for i in range(3)]
    aligned = all(stride % 16 == 0 for stride in found)
    return ([stride // 16 for stride in found] if aligned else found), aligned


def _on(work: Launch) -> AbstractContextManager[Any]:
    """Select the device of the tensors for Triton's launches."""
    return torch.cuda.device(work.device) if work.device.type == "cuda" else nullcontext()
