"""context_parallel_attention: fastmax_attention on a sequence whose tokens are spread over processes, exact."""

from dataclasses import replace
from math import prod
from typing import Any, Literal, NamedTuple, Unpack, overload
from zlib import crc32

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from fastmax import api, ops, validation
from fastmax._torch_private import find_watcher
from fastmax.backends import resolve
from fastmax.call import Call, Inputs, Lead, Options, normalization, output_dtype, plain_number
from fastmax.distributed import dtensors, layout
from fastmax.distributed.agree import Agreement, Statement
from fastmax.distributed.exchange import Problem, together
from fastmax.distributed.group import group_of


class ShardedKeywords(api.Keywords, total=False):
    """The keyword arguments that the type of the result does not depend on."""

    check: bool


@overload
def context_parallel_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    mesh: DeviceMesh | ProcessGroup | None = None,
    return_state: Literal[False] = False,
    **options: Unpack[ShardedKeywords],
) -> Tensor: ...
@overload
def context_parallel_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    mesh: DeviceMesh | ProcessGroup | None = None,
    return_state: Literal[True],
    **options: Unpack[ShardedKeywords],
) -> tuple[Tensor, Tensor]: ...
def context_parallel_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    mesh: DeviceMesh | ProcessGroup | None = None,
    order: int = 2,
    scale: float | Tensor | None = None,
    normalize: bool | str = True,
    log_decay: Tensor | None = None,
    enable_gqa: bool = False,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    dropout_mode: str = "quadratic",
    backend: str = "auto",
    check: bool = True,
) -> Any:
    """Run `fastmax_attention` on a sequence cut into contiguous shards, one per process of `mesh`, in the order of ranks.

        >>> q, k, v = (torch.randn(2, 4, 100, 16) for _ in range(3))  # the 100 tokens of this process
        >>> context_parallel_attention(q, k, v, is_causal=True, mesh=mesh).shape
        torch.Size([2, 4, 100, 16])

    Every process calls it with its own tokens, and gets its own rows of the output that one process would compute from all.
    Lengths may differ, and be 0. One sum over keys per head is exchanged each way, whatever the number of tokens.

    Gradients are those of the sum of the losses of all ranks: a tensor that is the same everywhere, such as a scale, gets the
    part of its gradient that comes from the tokens here, and the parts add up to the whole.

    Args:
        query: (..., Hq, Nq, D), the queries of this rank.
        key: (..., Hkv, Nk, D). In cross attention its shards need not be like those of the queries, unless causal.
        value: (..., Hkv, Nk, Dv).
        attn_mask: of the keys of this rank. With `enable_gqa` it may not differ between query heads that share a key head.
        dropout_p: masks are drawn by each rank for its own tokens; they are not those that one process would draw.
        is_causal: a query sees the keys up to its own place in the whole sequence.
        mesh: the processes that share the sequence: a one-dimensional DeviceMesh, e.g. mesh["cp"], or a process group.
            DTensors bring their own: one dimension of it shards the tokens; others may shard batch and heads.
        log_decay: of the tokens of this rank, (..., Hkv, N).
        initial_state: what came before the whole sequence, equal on every rank; that of the first rank counts, and gets all
            of the gradient.
        return_state: return (output, state), the state after the whole sequence, on every rank.
        check: compare the arguments of all ranks first, in one small exchange, so that a wrong one is refused on all of them
            instead of leaving them waiting. Without it every rank must have as many tokens as the others.

    The other arguments are those of `fastmax_attention`.

    Returns:
        (..., Hq, Nq, Dv), the rows of this rank, with the state if asked for.
    """
    options = Options(
        order=order, is_causal=is_causal, normalize=normalization(normalize), scale=plain_number(scale),
        enable_gqa=enable_gqa, return_state=return_state, dropout_p=dropout_p, dropout_mode=dropout_mode, backend=backend,
    )  # fmt: skip
    given = Inputs(query, key, value, attn_mask, scale, log_decay, initial_state)
    if dtensors.is_sharded(*given):
        unwrapped = dtensors.unwrap(*given, return_state)
        return unwrapped.wrap(_parallel(Inputs(*unwrapped.tensors), options, None, unwrapped.group, check))
    return _parallel(given, options, None, group_of(mesh), check)


@overload
def context_parallel_varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    mesh: DeviceMesh | ProcessGroup,
    return_state: Literal[False] = False,
    **options: Unpack[ShardedKeywords],
) -> Tensor: ...
@overload
def context_parallel_varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    mesh: DeviceMesh | ProcessGroup,
    return_state: Literal[True],
    **options: Unpack[ShardedKeywords],
) -> tuple[Tensor, Tensor]: ...
def context_parallel_varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    mesh: DeviceMesh | ProcessGroup,
    order: int = 2,
    scale: float | Tensor | None = None,
    normalize: bool | str = True,
    log_decay: Tensor | None = None,
    enable_gqa: bool = False,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    dropout_mode: str = "quadratic",
    backend: str = "auto",
    check: bool = True,
) -> Any:
    """Run `fastmax_varlen_attention` on packed sequences whose tokens, all in a row, are cut into contiguous shards.

    A shard may begin and end anywhere: only the sequences that cross a border are exchanged.

        >>> ends = torch.tensor([0, 5, 8])  # a sequence of 5 tokens and one of 3, here on one process
        >>> q, k, v = (torch.randn(8, 4, 16) for _ in range(3))
        >>> context_parallel_varlen_attention(q, k, v, ends, ends, is_causal=True, mesh=mesh).shape
        torch.Size([8, 4, 16])

    Args:
        query: (tokens here, Hq, D).
        key: (tokens here, Hkv, D).
        value: (tokens here, Hkv, Dv).
        cu_seqlens_q: of all tokens of all ranks, the same on every rank.
        cu_seqlens_k: the same for the keys.
        attn_mask: boolean, broadcastable to (Hq, 1, keys here).
        initial_state: (sequences, Hkv, F, Dv + 1), of all sequences, as is the state returned.

    The other arguments are those of `context_parallel_attention`.
    """
    options = Options(
        order=order, is_causal=is_causal, normalize=normalization(normalize), scale=plain_number(scale),
        enable_gqa=enable_gqa, return_state=return_state, dropout_p=dropout_p, dropout_mode=dropout_mode, backend=backend,
    )  # fmt: skip
    given = Inputs(query, key, value, attn_mask, scale, log_decay, initial_state)
    result = _parallel(given, options, (cu_seqlens_q, cu_seqlens_k), group_of(mesh), check)
    return (result[0].transpose(0, 1), result[1]) if return_state else result.transpose(0, 1)


_BETWEEN_SEEDS = 0x9E3779B97F4A7C1
"""An odd number far from small ones: seeds are mixed, but those of neighbouring calls may be neighbours."""


class _Bound(NamedTuple):
    """A call that this rank accepts. `call` has the tokens of this rank and no state; `initial` is the state."""

    call: Call
    lead: Lead
    initial: Tensor | None
    ends: tuple[layout.Ends, layout.Ends] | None


def _parallel(
    given: Inputs, options: Options, cu_seqlens: tuple[Tensor, Tensor] | None, group: ProcessGroup, check: bool
) -> Any:
    """Run both public functions."""
    if group.size() == 1:
        return _alone(given, options, cu_seqlens)
    bound, refusal = None, None
    try:
        bound = _bind(given, options, cu_seqlens, group)
    except (ValueError, TypeError) as error:
        if not check:
            raise
        refusal = str(error)
    call = None if bound is None else bound.call
    counts = (0, 0) if call is None else (call.q.shape[2], call.k.shape[2])
    if check:
        statement = Statement({} if bound is None else _common(bound, given, options), refusal, counts)
        device = given.query.device if isinstance(given.query, Tensor) else torch.device("cpu")
        lengths = Agreement(statement, group, device).wait()
    else:
        lengths = [counts] * group.size()
    assert bound is not None
    assert call is not None
    queries, keys = ([length[i] for length in lengths] for i in (0, 1))
    _check_cut(bound, queries, keys)
    tensors = [x for x in (*given, *(cu_seqlens or ())) if isinstance(x, Tensor)]
    problem = Problem(call, bound.initial, bound.ends, queries, keys, group, api.select_path(find_watcher(tensors)))
    o, state = together(problem, options.return_state)
    o = o.to(output_dtype(given.value, call.dtype)).reshape(*bound.lead.batch, *bound.lead.heads, *o.shape[2:])
    if state is None:
        return o
    return o, state.reshape(*bound.lead.states, *bound.lead.key_heads, *state.shape[2:])


def _alone(given: Inputs, options: Options, cu_seqlens: tuple[Tensor, Tensor] | None) -> Any:
    if cu_seqlens is not None:
        validation.packed(given.query, given.key, given.value, *cu_seqlens)
        given = given.with_heads_first()
    return api._attend(*given, options, cu_seqlens)


def _bind(given: Inputs, options: Options, cu_seqlens: tuple[Tensor, Tensor] | None, group: ProcessGroup) -> _Bound:
    """Make every check that one rank can make alone, even if it reads data: later it would leave the others waiting."""
    ends = None
    if cu_seqlens is not None:
        validation.packed(given.query, given.key, given.value, *cu_seqlens)
        given = given.with_heads_first()
        ends = tuple(cu_seqlens[0].tolist()), tuple(cu_seqlens[1].tolist())
    call, lead = api.bind_call(given, options, cu_seqlens)
    if call.k.shape[1] != prod(lead.key_heads):
        raise ValueError(
            "ranks exchange one sum per key head: with enable_gqa, attn_mask must have a head dimension of 1, got one mask "
            "per query head"
        )
    seed = call.dropout_seed
    initial = call.state_in
    call = replace(
        call,
        state_in=None,
        cu_seqlens_q=None,
        cu_seqlens_k=None,
        # tokens at the same place of different shards must not share their masks
        dropout_seed=None if seed is None else seed + group.rank() * _BETWEEN_SEEDS,
        options=call.options._replace(return_state=False),
    )
    ops.check_values(call)
    resolve(replace(call, options=call.options._replace(return_state=True)))
    return _Bound(call, lead, initial, ends)


def _common(bound: _Bound, given: Inputs, options: Options) -> dict[str, Any]:
    """Return what must be equal on all ranks: everything but the lengths and the contents of tensors."""
    call, graded = bound.call, torch.is_grad_enabled()
    tensors = {name: x for name, x in given._asdict().items() if isinstance(x, Tensor) and name != "attn_mask"}
    return {
        **options._asdict(),
        "heads": (call.q.shape[1], call.k.shape[1]),
        "batch": tuple(bound.lead.batch),
        "head dimensions": (call.head_dim, call.value_dim),
        "dtypes": {name: str(x.dtype) for name, x in tensors.items()},
        "device": call.q.device.type,
        "tensors with gradients": [name for name, x in tensors.items() if x.requires_grad and graded],
        "cu_seqlens": None if bound.ends is None else [_summary(ends) for ends in bound.ends],
    }


def _summary(ends: layout.Ends) -> str:
    return f"{len(ends) - 1} sequences up to {ends[-1]} (checksum {crc32(repr(ends).encode()):08x})"


def _check_cut(bound: _Bound, queries: list[int], keys: list[int]) -> None:
    """Check what depends on the lengths of all ranks. All ranks know these, so all of them raise."""
    if bound.ends is not None:
        validation.cu_seqlens("cu_seqlens_q", bound.ends[0], sum(queries))
        validation.cu_seqlens("cu_seqlens_k", bound.ends[1], sum(keys))
        alike = bound.ends[0] == bound.ends[1] and queries == keys
        if not alike and (bound.call.options.is_causal or bound.call.log_decay is not None):
            raise ValueError(
                "packed sequences that are causal or have a log_decay must be of self attention: cu_seqlens_q and "
                "cu_seqlens_k, and the shards of queries and of keys, must be equal"
            )
    elif bound.call.options.is_causal:
        misfit = layout.causal_misfit(queries, keys)
        if misfit is not None:
            raise ValueError(misfit)
