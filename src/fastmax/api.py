"""The public functions fastmax_attention and fastmax_varlen_attention: build the Options, check, and select a path."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypedDict, Unpack, overload

from torch import Tensor

from fastmax import _eager_path, dropout, ops, validation
from fastmax._torch_private import AUTOGRAD, ON_DEVICE, TRANSFORM, find_watcher
from fastmax.backends import native
from fastmax.both_directions import Outputs, attend_both_ways
from fastmax.call import Call, Inputs, Lead, Options, RunningState, bind, output_dtype
from fastmax.core import default_scale
from fastmax.plan import RULE, Plan


class Keywords(TypedDict, total=False):
    """The keyword arguments that the type of the result does not depend on."""

    order: int
    scale: float | Tensor | None
    normalize: bool | str
    log_decay: Tensor | None
    enable_gqa: bool
    initial_state: Tensor | None
    dropout_mode: str
    backend: str


@overload
def fastmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    state: RunningState | None = None,
    return_state: Literal[False] = False,
    **options: Unpack[Keywords],
) -> Tensor: ...
@overload
def fastmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    return_state: Literal[True],
    **options: Unpack[Keywords],
) -> tuple[Tensor, Tensor]: ...
def fastmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    order: int = 2,
    scale: float | Tensor | None = None,
    normalize: bool | str = True,
    log_decay: Tensor | None = None,
    enable_gqa: bool = False,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    state: RunningState | None = None,
    dropout_mode: str = "quadratic",
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute exact Fastmax attention in O(N) time and O(N D) memory; replaces F.scaled_dot_product_attention.

        >>> q, k, v = (torch.randn(2, 4, 100, 16) for _ in range(3))  # batch, heads, tokens, channels
        >>> fastmax_attention(q, k, v, is_causal=True).shape
        torch.Size([2, 4, 100, 16])

    Args:
        query: (..., Hq, Nq, D). Leading dimensions of the three inputs broadcast; tensors without them are fine too.
        key: (..., Hkv, Nk, D).
        value: (..., Hkv, Nk, Dv).
        attn_mask: boolean, True where a key counts, broadcastable to (..., Hq, 1, Nk): it may not vary with the query. It
            may be combined with `is_causal`. The contents of a masked key do not matter, not even NaN. A query with no key
            left gives zeros.
        dropout_p: the rate at which factorized terms are dropped, in [0, 1), by `dropout_mode`. As in SDPA, it is applied
            whenever it is not 0: pass 0 in evaluation.
        is_causal: query i sees the keys j <= i, aligned at the top left if Nq != Nk, and all of `initial_state`.
        order: the degree of the polynomial, 1 to 4.
        scale: multiplies s = q̂ . k̂; a number, or a tensor with one value per query head, which may be learned. Default: 1
            for even orders, 1 / D for odd ones, whose weights can be negative at larger scales.
        normalize: True standardizes each query and key (mean 0, variance 1 over its channels). "rms" divides it by its root
            mean square and leaves the mean: that commutes with rotations, so it is the one for rotary positions that were
            applied before. With False the inputs are taken as they are: apply `fastmax.standardize` yourself, for example
            to rotate positions in after it.
        log_decay: forgetting, <= 0, broadcastable to (..., Hkv, N), for self attention: with c its cumulative sum over the
            tokens, the weight of key j for query i is multiplied by exp(c_i - c_j) if causal, exp(-|c_i - c_j|) if not. So
            a token's own key keeps its full weight, and what came before it fades by exp(log_decay) of every token in
            between. A key that `attn_mask` hides does not decay anything. `initial_state` fades too. To drop all that
            came before a token, give it torch.finfo(dtype).min.
        enable_gqa: Hq may be a multiple of Hkv: consecutive query heads share a key head.
        initial_state: the sum over keys that came before, (..., Hkv, F, Dv + 1), from an earlier `return_state`.
        return_state: return (output, state), the state being `initial_state` plus the sum over these keys. Gradients flow
            through both.
        state: a `FastmaxState`. These tokens go on where those in it ended, and are added to it: the same call serves
            training (None), a prompt and every token after it. The state keeps `order`, `scale`, `normalize` and the presence
            of `log_decay` of its first call, and a call that differs raises. It needs `is_causal`, one mask for all heads
            and inputs of shape (B, heads, N, D).
        dropout_mode: "quadratic" drops features of degree 2 of each query and key, "standard" all but the constant one, "1d"
            whole queries and keys. Masks come from torch's generator and are never stored.
        backend: "auto" or the name of one, see `fastmax.backends`.

    Returns:
        (..., Hq, Nq, Dv) in the dtype of `value`, or of autocast where it is on; sums are taken in fp32 (fp64 for fp64).
    """
    # inline, because a function call is a share of a short attention
    number = None if isinstance(scale, Tensor) else scale
    how = "standardize" if normalize is True else "none" if normalize is False else normalize
    options = Options(
        order=order, is_causal=is_causal, normalize=how, scale=number,
        enable_gqa=enable_gqa, return_state=return_state, dropout_p=dropout_p, dropout_mode=dropout_mode, backend=backend,
    )  # fmt: skip
    if state is not None:
        if not isinstance(state, RunningState):
            raise TypeError(f"state must be a FastmaxState, got {type(state).__name__}")
        if initial_state is not None or return_state:
            raise ValueError("initial_state and return_state cannot be combined with state")
        return state.attend(query, key, value, attn_mask, scale, log_decay, options)
    return _attend(query, key, value, attn_mask, scale, log_decay, initial_state, options)


@overload
def fastmax_varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    return_state: Literal[False] = False,
    **options: Unpack[Keywords],
) -> Tensor: ...
@overload
def fastmax_varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    return_state: Literal[True],
    **options: Unpack[Keywords],
) -> tuple[Tensor, Tensor]: ...
def fastmax_varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    order: int = 2,
    scale: float | Tensor | None = None,
    normalize: bool | str = True,
    log_decay: Tensor | None = None,
    enable_gqa: bool = False,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    dropout_mode: str = "quadratic",
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute Fastmax attention over sequences of different lengths, packed one after the other.

        >>> ends = torch.tensor([0, 5, 8])  # a sequence of 5 tokens and one of 3
        >>> q, k, v = (torch.randn(8, 4, 16) for _ in range(3))  # tokens, heads, channels
        >>> fastmax_varlen_attention(q, k, v, ends, ends, is_causal=True).shape
        torch.Size([8, 4, 16])

    Args:
        query: (total_q, Hq, D).
        key: (total_k, Hkv, D).
        value: (total_k, Hkv, Dv).
        cu_seqlens_q: (sequences + 1,), int32 or int64: sequence i has the queries cu_seqlens_q[i] up to cu_seqlens_q[i + 1].
        cu_seqlens_k: the same for the keys.
        attn_mask: boolean, broadcastable to (Hq, 1, total_k).
        initial_state: (sequences, Hkv, F, Dv + 1), as is the state returned.

    The other arguments are those of `fastmax_attention`. No sequence sees another.

    Returns:
        (total_q, Hq, Dv), with the state if asked for.
    """
    validation.packed(query, key, value, cu_seqlens_q, cu_seqlens_k)
    # inline, because a function call is a share of a short attention
    number = None if isinstance(scale, Tensor) else scale
    how = "standardize" if normalize is True else "none" if normalize is False else normalize
    options = Options(
        order=order, is_causal=is_causal, normalize=how, scale=number,
        enable_gqa=enable_gqa, return_state=return_state, dropout_p=dropout_p, dropout_mode=dropout_mode, backend=backend,
    )  # fmt: skip
    q, k, v = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
    result = _attend(q, k, v, attn_mask, scale, log_decay, initial_state, options, (cu_seqlens_q, cu_seqlens_k))
    return (result[0].transpose(0, 1), result[1]) if isinstance(result, tuple) else result.transpose(0, 1)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    scale: float | Tensor | None,
    log_decay: Tensor | None,
    initial_state: Tensor | None,
    options: Options,
    cu_seqlens: tuple[Tensor, Tensor] | None = None,
    plan: Plan = RULE,
) -> Tensor | tuple[Tensor, Tensor]:
    """Run both public functions, on (..., heads, N, D). A plan other than RULE takes effect on the eager path only."""
    more = [x for x in (attn_mask, scale, log_decay, initial_state) if x is not None and x is not options.scale]
    watcher = find_watcher((query, key, value, *more, *(cu_seqlens or ())))  # type: ignore[arg-type]
    plain = (not more or (len(more) == 1 and more[0] is log_decay)) and cu_seqlens is None and plan is RULE
    cache_key, prepared = None, None
    if plain:
        cache_key, prepared = _eager_path.find_prepared_call(query, key, value, log_decay, options, watcher)
    if prepared is not None:
        return _eager_path.run_prepared_call(prepared, query, key, value, log_decay, watcher)
    inputs = Inputs(query, key, value, attn_mask, scale, log_decay, initial_state)
    call, lead = bind_call(inputs, options, cu_seqlens)
    # a prepared call takes the tensors as they are, so one whose binding has changed them is not cached
    if call.q is not query or call.k is not key or call.v is not value:
        cache_key = None
    if log_decay is not None and call.log_decay is not None and call.log_decay.stride() != log_decay.stride():
        cache_key = None
    if log_decay is None:
        # only here, where the denominators are not read
        path = _eager_path.run_on_device if watcher == ON_DEVICE else select_path(watcher, cache_key, plan)
        o, _, state = path(call)
    else:
        o, _, state = run_sweeps(call, select_path(watcher, cache_key if takes_one_sweep(call) else None, plan))
    if log_decay is not None:
        o = o.to(output_dtype(value, call.dtype))
    if len(lead.batch) != 1 or len(lead.heads) != 1:
        o = o.reshape(*lead.batch, *lead.heads, *o.shape[2:])
    return (o, state.reshape(*lead.states, *lead.key_heads, *state.shape[2:])) if options.return_state else o


def bind_call(inputs: Inputs, options: Options, cu_seqlens: tuple[Tensor, Tensor] | None = None) -> tuple[Call, Lead]:
    """Check the arguments and return the call in the canonical layout with its leading dimensions."""
    sequences = None if cu_seqlens is None else cu_seqlens[1].shape[0] - 1
    lead = validation.attention(inputs, options, sequences)
    number = options.scale
    if number is None:
        number = 1.0 if isinstance(inputs.scale, Tensor) else default_scale(options.order, inputs.query.shape[-1])
    seed = dropout.new_seed(inputs.query.device) if options.dropout_p else None
    return bind(inputs, cu_seqlens, seed, options, number, lead), lead


def select_path(watcher: int, cache_key: Any = None, plan: Plan = RULE) -> Callable[[Call], Outputs]:
    """Return the shortest path to a backend that autograd, tracers and modes allow."""
    if watcher <= AUTOGRAD:
        return partial(_eager_path.run_call, watcher=watcher, cache_key=cache_key, plan=plan)
    return partial(ops.attend, transformed=watcher == TRANSFORM)


def takes_one_sweep(call: Call) -> bool:
    """Return True unless decays fade in both directions and the backend has them in one direction only."""
    return call.log_decay is None or call.options.is_causal or native.fades_both_ways(call)


def run_sweeps(call: Call, attend: Callable[[Call], Outputs]) -> Outputs:
    """Return o, g and the state, by one causal call for each direction where it takes two."""
    return attend(call) if takes_one_sweep(call) else attend_both_ways(call, attend)
