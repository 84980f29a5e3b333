"""The contract of every backend: calls of all kinds, the definition in fp64 with autograd's gradients, the comparison.

A backend takes part by being in `fastmax.backends.NAMES`, once for each instruction set level if it has levels. Triton's
takes part on a GPU, and in Triton's interpreter, in a process of its own.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from fastmax import backends, dropout, ops
from fastmax.backends import Backend
from fastmax.backends.native import abi
from fastmax.call import Call, InputGrads, Options, OutputGrads
from fastmax.core import normalized, similarity
from fastmax.decay import bounded
from fastmax.plan import FORMS, Plan
from fastmax.reference import _monomials, decay_between
from tests.backends.interpreter import MISSING, interpreted
from tests.support import assert_within_budget, randn

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]

MAY_REFUSE = {
    "native": r"order [34] has (no state|only the dense form)|channels per head|runs on the CPU",
    "triton": r"dropout|order [34] has (no state|only the dense form)|channels per head|runs on GPUs",
    "batched": r"order [34] has (no state|only the dense form)",
    "chunked": "(?!)",
}
"""Calls that a backend may refuse; it must compute all others."""


class Variant(NamedTuple):
    name: str
    level: str | None
    device: str
    form: str

    def __str__(self) -> str:
        return f"{self.name}{'' if self.level is None else '/' + self.level}-{self.device}-{self.form}"

    @property
    def backend(self) -> Backend:
        if self.level == "interpreted":
            found: Any = interpreted()
            return found
        return backends.load(self.name)

    @property
    def plan(self) -> Plan:
        return Plan(form=self.form, level=self.level)

    def sums_about_the_mean(self, order: int) -> bool:
        """Return True if sums without a state are about the mean of some keys in fp32."""
        return self.form == "factorized" and (self.name == "chunked" or (self.name == "native" and order == 2))

    def workers(self, *numbers: int) -> tuple[int, ...]:
        """Numbers of threads to try; the process of the interpreter has one, whatever is set in that of the tests."""
        return (1,) if self.level == "interpreted" else numbers

    def adapted(self, call: Call, grads: OutputGrads) -> tuple[Call, OutputGrads]:
        """In fp32 what is in fp64, where a backend has none."""
        if self.name != "triton":
            return call, grads
        narrow = [x.float() if isinstance(x, Tensor) and x.dtype == torch.float64 else x for x in call.flatten()]
        options = Call.unflatten(narrow).options
        if options.out_dtype == torch.float64:
            options = options._replace(out_dtype=torch.float32)
        return replace(Call.unflatten(narrow), options=options), OutputGrads(
            *(x.float() if x is not None and x.dtype == torch.float64 else x for x in grads)
        )

    def precision(self, call: Call) -> torch.dtype | None:
        """Return the dtype that products are rounded to, if less than fp32: tensor cores take half precision as it is.

        So do the pairs of a CPU in the dense form; where there are states or decays it has none.
        """
        kinds = {call.q.dtype, call.k.dtype, call.v.dtype}
        if self.level == abi.BF16_LEVEL and self.form == "dense":
            narrow = kinds | {call.options.out_dtype} == {torch.bfloat16}
            plain = call.log_decay is None and not call.drops_features and not _has_state(call)
            return torch.bfloat16 if narrow and plain else None
        if self.name == "batched":
            return (
                torch.bfloat16
                if kinds == {torch.bfloat16} and not call.drops_features and not _has_state(call)
                else None
            )
        if self.name != "triton" or not kinds <= {torch.bfloat16, torch.float16}:
            return None
        return torch.bfloat16 if kinds == {torch.bfloat16} else torch.float16


def variants() -> list[Any]:
    """For parametrize: those of Triton's interpreter only run where they are asked for, and those of a GPU are marked."""
    found: list[Any] = []
    for name in backends.NAMES:
        if name == "triton":
            found += [
                pytest.param(variant, marks=pytest.mark.interpreted, id=str(variant))
                for variant in interpreted_variants()
            ]
        levels = getattr(backends.load(name), "levels", lambda: (None,))()
        for device in DEVICES:
            marks = [pytest.mark.gpu] if device == "cuda" else []
            for level in () if (name, device) == ("triton", "cpu") else levels:
                each = [Variant(name, level, device, form) for form in FORMS]
                found += [pytest.param(variant, marks=marks, id=str(variant)) for variant in each]
    return found


def interpreted_variants() -> list[Variant]:
    return [] if MISSING else [Variant("triton", "interpreted", "cpu", form) for form in FORMS]


class RefusedError(Exception):
    """The backend says that it cannot run a call, and may."""


@contextmanager
def threads(n: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def make(q: Tensor, k: Tensor, v: Tensor, *, options: Options | None = None, **more: Any) -> Call:
    """A call by the names of its tensors and options. The scale keeps the weights of odd orders well away from zero."""
    tensors = {name: more.pop(name) for name in list(more) if name not in Options._fields}
    chosen = Options(scale=0.7 / q.shape[-1], out_dtype=v.dtype) if options is None else options
    return Call(q, k, v, **tensors, options=chosen._replace(**more))


def output_grads(call: Call) -> OutputGrads:
    o, g, state = call.new_outputs()
    return OutputGrads(*(randn(*x.shape, dtype=x.dtype).to(x.device) for x in (o, g, state)))


def run(variant: Variant, call: Call, grads: OutputGrads, plan: Plan | None = None) -> dict[str, Tensor]:
    """o, g, state and the gradients of the inputs, by their names."""
    plan = variant.plan if plan is None else plan
    reason = variant.backend.unsupported(replace(call, options=call.options._replace(backend=variant.name)))
    if reason is None:
        try:
            o, g, state = variant.backend.forward(call, plan)
        except ValueError as error:  # a form that was forced
            reason = str(error)
    if reason is not None:
        assert re.search(MAY_REFUSE.get(variant.name, ""), reason), f"{variant} must not refuse this: {reason}"
        raise RefusedError(reason)
    found = ops.gradients(variant.backend, plan, call, o, g, state, *grads)
    return {"o": o, "g": g, "state": state} | {f"d_{name}": x for name, x in found._asdict().items()}


def check(
    variant: Variant, call: Call, grads: OutputGrads | None = None, plan: Plan | None = None, *, budgets: float = 1
) -> None:
    """Everything within twice the error that the definition makes in the precision of the call, plus rounding."""
    grads = output_grads(call) if grads is None else grads
    call, grads = to_device(*variant.adapted(call, grads), variant.device)
    actual = run(variant, call, grads, plan)
    exact, same = defined(call, grads, exact=True), defined(call, grads, exact=False)
    for name, x in actual.items():
        try:
            assert_within_budget(x, exact[name], same[name], variant.precision(call), budgets=budgets)
        except AssertionError as error:
            raise AssertionError(f"{name} of {variant}: {error}") from None


def in_fp64(call: Call, grads: OutputGrads) -> tuple[Call, OutputGrads]:
    """The same call and gradients in double precision."""
    wide = [x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in call.flatten()]
    moved = Call.unflatten(wide)
    moved.options = moved.options._replace(out_dtype=torch.float64)
    return moved, OutputGrads(*(None if x is None else x.double() for x in grads))


def to_device(call: Call, grads: OutputGrads, device: str) -> tuple[Call, OutputGrads]:
    if device == "cpu":
        return call, grads
    moved = [x.to(device) if isinstance(x, Tensor) else x for x in call.flatten()]
    return Call.unflatten(moved), OutputGrads(*(None if x is None else x.to(device) for x in grads))


def defined(call: Call, grads: OutputGrads, *, exact: bool) -> dict[str, Tensor]:
    """The same by the definition and autograd, in fp64 if `exact`."""
    leaves: dict[str, Tensor] = {}
    for name in InputGrads._fields:
        x = getattr(call, name)
        if x is not None:
            leaves[name] = (x.detach().double() if exact else x.detach()).requires_grad_()
    outputs = _definition(replace(call, **leaves), exact)
    pairs = [(x, d.to(x.dtype)) for x, d in zip(outputs, grads, strict=True) if d is not None and x.numel()]
    pairs.append((sum(x.sum() for x in leaves.values()), torch.zeros((), dtype=torch.float64)))  # all are in the graph
    found = torch.autograd.grad([x for x, _ in pairs], list(leaves.values()), [d.to(x.dtype) for x, d in pairs])
    named = dict(zip(leaves, found, strict=True))
    nothing = torch.empty(0, dtype=torch.float64 if exact else call.q.dtype, device=call.q.device)
    result = dict(zip(("o", "g", "state"), (x.detach() for x in outputs), strict=True))
    return result | {f"d_{name}": named.get(name, nothing) for name in InputGrads._fields}


class _Divided(torch.autograd.Function):
    """f / g in the dtype of the output, which is also what the backward pass finds of it."""

    @staticmethod
    def forward(ctx: Any, f: Tensor, g: Tensor, dtype: torch.dtype) -> Tensor:
        inverse = torch.where(g == 0, 0, 1 / g)
        o = (f * inverse).to(dtype)
        ctx.save_for_backward(o, inverse)
        return o

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        o, inverse = ctx.saved_tensors
        df = grads[0].to(inverse.dtype) * inverse
        return df, -(df * o).sum(-1, keepdim=True), None


class _Fading(NamedTuple):
    """The factors by which keys, queries and states fade over one sequence, in fp64."""

    pairs: Tensor  # (B, Hkv, N, N), of key j at query i >= j
    since_start: Tensor  # (B, Hkv, N), of a state at each query
    until_end: Tensor  # (B, Hkv, N), of each key after the last token
    whole: Tensor  # (B, Hkv), of a state over all tokens
    of_denominators: Tensor  # (B, Hkv, N), ones that carry a gradient


def _products(log_decay: Tensor) -> _Fading:
    """Multiply the factors of tokens, one by one."""
    factors = log_decay.double().exp()
    tokens = factors.shape[-1]
    row = torch.arange(-1, tokens, device=factors.device)  # from a query in front of all tokens on
    every = decay_between(torch.nn.functional.pad(factors, (1, 0), value=1.0), row + 1)
    return _Fading(
        every[..., 1:, 1:], every[..., 1:, 0], every[..., -1, 1:], every[..., -1, 0], torch.ones_like(factors)
    )


def _differences(log_decay: Tensor) -> _Fading:
    """Take differences of sums, with gradients as backends have them.

    A decay of rows does not change a quotient, however rounded, but the denominator itself.
    """
    c = bounded(log_decay).double().cumsum(-1)
    rows, last = c.detach(), c[..., -1:] if c.shape[-1] else c.new_zeros(*c.shape[:2], 1)
    pairs = (rows[..., :, None] - c[..., None, :]).clamp(max=0).exp()
    return _Fading(pairs, rows.exp(), (last - c).exp(), last.squeeze(-1).exp(), (c - rows).exp())


def _definition(call: Call, exact: bool) -> tuple[Tensor, Tensor, Tensor]:
    dtype = torch.float64 if exact else call.dtype
    options, groups = call.options, max(1, call.groups)
    q, k, v = (x.to(dtype) for x in (call.q, call.k, call.v))
    ones = torch.ones_like(v[..., :1])
    if call.key_mask is not None:
        keep = call.key_mask.unsqueeze(-1)
        k, v, ones = torch.where(keep, k, 0), torch.where(keep, v, 0), torch.where(keep, ones, 0)
    q, k = normalized(q, options.normalize), normalized(k, options.normalize)
    masks = _masks(call)
    if call.dropout_mode == "1d":
        q, k = q * masks[0].to(dtype), k * masks[1].to(dtype)
    q = q * call.scale
    if call.head_scale is not None:
        q = q * call.head_scale.to(dtype)[:, None, None]
    u = torch.cat([v, ones], -1)
    has_features = _has_state(call) or call.drops_features
    phi_q, phi_k = (_monomials(x, options.order) if has_features else x[..., :0] for x in (q, k))
    if call.drops_features:
        phi_q, phi_k = phi_q * masks[0].to(dtype), phi_k * masks[1].to(dtype)
    sums, states = [], []
    for i, (at_q, at_k) in enumerate(_sequences(call)):
        x, y, values = q[:, :, at_q], k[:, :, at_k].repeat_interleave(groups, 1), u[:, :, at_k]
        if call.drops_features:
            weights = phi_q[:, :, at_q] @ phi_k[:, :, at_k].repeat_interleave(groups, 1).mT
        else:
            weights = similarity(x @ y.mT, options.order)
        fading = None
        if call.log_decay is not None:
            fading = (_products if exact else _differences)(call.log_decay[:, :, at_k])
            weights = weights * fading.pairs.to(dtype).repeat_interleave(groups, 1)
        f = (weights.tril() if options.is_causal else weights) @ values.repeat_interleave(groups, 1)
        before = None
        if call.state_in is not None:
            before = call.state_in[i : i + 1] if call.cu_seqlens_k is not None else call.state_in
            read = phi_q[:, :, at_q] @ before.to(dtype).repeat_interleave(groups, 1)
            if fading is not None:
                read = read * fading.since_start.to(dtype).unsqueeze(-1).repeat_interleave(groups, 1)
            f = f + read
        if fading is not None:
            rows = fading.of_denominators.to(dtype).unsqueeze(-1).repeat_interleave(groups, 1)
            f = torch.cat([f[..., :-1], f[..., -1:] * rows], -1)
        sums.append(f)
        if options.return_state:
            own = values if fading is None else values * fading.until_end.to(dtype).unsqueeze(-1)
            state = phi_k[:, :, at_k].mT @ own
            if before is not None:
                whole = 1.0 if fading is None else fading.whole.to(dtype)[..., None, None]
                state = state + whole * before.to(dtype)
            states.append(state)
    none = q.new_zeros(*q.shape[:2], 0, u.shape[-1])
    f = torch.cat([none, *sums], 2)
    empty = q.new_zeros(0, *call.state_shape[1:])
    state = torch.cat([empty, *states]) if options.return_state else q.new_zeros(0)
    out_dtype = torch.float64 if exact else options.out_dtype
    return _Divided.apply(f[..., :-1], f[..., -1:], out_dtype), f[..., -1], state


def _masks(call: Call) -> list[Tensor]:
    """Return the factors of dropout on the features, or the tokens, of queries and keys; an empty list without dropout."""
    mode, rate, seed = call.dropout_mode, call.options.dropout_p, call.dropout_seed
    if mode is None or seed is None:
        return []
    return [
        dropout.multipliers(
            mode, rate, seed, side, (x.shape[0], x.shape[1]), x.shape[2], x.shape[3], call.options.order
        )
        for side, x in enumerate((call.q, call.k))
    ]


def _has_state(call: Call) -> bool:
    return call.state_in is not None or call.options.return_state


def _sequences(call: Call) -> list[tuple[slice, slice]]:
    if call.cu_seqlens_q is None or call.cu_seqlens_k is None:
        return [(slice(None), slice(None))]
    ends = [[slice(a, b) for a, b in pairwise(cu)] for cu in (call.cu_seqlens_q.tolist(), call.cu_seqlens_k.tolist())]
    return list(zip(*ends, strict=True))


def tokens(layout: str, batch: int, heads: int, n: int, channels: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return tokens (batch, heads, n, channels) in memory as `layout` says."""
    if layout == "heads inside":
        return randn(batch, n, heads, channels, dtype=dtype).transpose(1, 2)
    if layout == "channels outside":
        return randn(batch, heads, channels, n, dtype=dtype).mT
    if layout == "slice":
        return randn(batch, heads, 2 * n + 1, channels + 3, dtype=dtype)[:, :, 1::2, 2 : channels + 2]
    if layout == "batch inside":
        return randn(heads, batch, n, channels, dtype=dtype).transpose(0, 1)
    if layout == "every other channel":
        return randn(batch, heads, n, 2 * channels, dtype=dtype)[..., ::2]
    if layout == "expanded":
        return randn(1, 1, n, channels, dtype=dtype).expand(batch, heads, n, channels)
    assert layout == "plain"
    return randn(batch, heads, n, channels, dtype=dtype)


LAYOUTS = ["plain", "heads inside", "channels outside", "slice", "batch inside", "every other channel", "expanded"]
DTYPES = {
    "fp64": [torch.float64] * 4,
    "fp32": [torch.float32] * 4,
    "bf16": [torch.bfloat16] * 4,
    "fp16": [torch.float16] * 4,
    "autocast": [torch.float32] * 3 + [torch.bfloat16],
    "wide values": [torch.bfloat16, torch.bfloat16, torch.float32, torch.float32],
    "two halves": [torch.float16, torch.float16, torch.bfloat16, torch.bfloat16],
    "all kinds": [torch.float32, torch.bfloat16, torch.float64, torch.float64],
}
"""Dtypes of q, k, v and o."""


@st.composite
def calls(draw: st.DrawFn, most_tokens: int = 150, most_channels: int = 24) -> tuple[Call, OutputGrads]:
    """Anything that a backend can be given, and gradients of its outputs."""
    torch.manual_seed(draw(st.integers(0, 1000)))
    dtypes = DTYPES[draw(st.sampled_from(["fp64", "fp64", *DTYPES]))]
    dtype = torch.float64 if torch.float64 in dtypes else torch.float32
    packed = draw(st.sampled_from([False, False, True]))
    batch = 1 if packed else draw(st.sampled_from([1, 2, 2, 0]))
    heads, groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    dim, value_dim = (draw(st.integers(1, most_channels)) for _ in range(2))
    order = draw(st.sampled_from([1, 2, 2, 3, 4]))
    if order > 2:
        dim = min(dim, 6)  # which keeps F below 210
    decays, is_causal = draw(st.booleans()), draw(st.booleans())
    decays = decays and is_causal
    lengths = st.one_of(st.sampled_from([0, 1, 2]), st.integers(0, most_tokens))
    keys = draw(lengths)
    queries = keys if decays else draw(st.one_of(st.just(keys), lengths))
    normalize = draw(st.sampled_from(["standardize", "standardize", "none", "rms"]))
    if normalize == "rms":
        dim = max(dim, 2)  # of one channel rms leaves the sign: its gradient is 0, and what is computed rounding alone
    sizes = ((heads * groups, queries, dim), (heads, keys, dim), (heads, keys, value_dim))
    q, k, v = (
        tokens(draw(st.sampled_from(LAYOUTS)), batch, *size, dtype=kind)
        for size, kind in zip(sizes, dtypes[:3], strict=True)
    )
    mode = draw(st.sampled_from([None, None, *dropout.MODES]))
    if normalize == "none" and (order % 2 or mode is not None):  # for |s| <= 1 and weights that are positive
        q, k = (normalized(x.double(), "rms").to(x.dtype) for x in (q, k))
    more: dict[str, Any] = {}
    if decays:
        more["log_decay"] = (
            -torch.rand(batch, keys, heads, dtype=torch.float64)
            .mT.pow(4)
            .mul(draw(st.sampled_from([0.01, 1.0, 60.0])))
            .to(dtype)
        )
        reset = draw(st.sampled_from([None, None, -200.0, -1e16, torch.finfo(dtype).min]))  # some tokens forget all
        if reset is not None:
            more["log_decay"] = more["log_decay"].masked_fill(torch.rand(batch, heads, keys) < 0.05, reset)
    if draw(st.booleans()):
        mask = torch.rand(keys, batch, draw(st.sampled_from([1, heads]))).permute(1, 2, 0) < 0.7
        k, v = (torch.where(mask.unsqueeze(-1), x, torch.nan) for x in (k, v))
        more["key_mask"] = mask
        if decays:
            more["log_decay"] = torch.where(mask, more["log_decay"], 0)
    states = batch
    if packed:
        states = draw(st.integers(0 if queries == keys == 0 else 1, 4))
        kind = draw(st.sampled_from([torch.int32, torch.int64]))
        for name, n in (("cu_seqlens_k", keys), ("cu_seqlens_q", queries)):
            cuts = sorted(draw(st.integers(0, n)) for _ in range(states - 1))
            more[name] = torch.tensor([0, *cuts, n][: states + 1], dtype=kind)
        if decays:
            more["cu_seqlens_q"] = more["cu_seqlens_k"]
    if draw(st.booleans()):
        more["head_scale"] = torch.rand(heads * groups, dtype=torch.float64).to(dtype)
    if draw(st.booleans()):  # of keys that there might have been, so that no denominator vanishes
        before = make(
            randn(states, heads, 0, dim),
            randn(states, heads, 9, dim),
            randn(states, heads, 9, value_dim),
            order=order,
            return_state=True,
        )
        state = _definition(before, exact=True)[2].to(dtype)
        more["state_in"] = state.mT.contiguous().mT if draw(st.booleans()) else state
    if mode is not None:  # of any order weights may be negative now, unless |s| is small
        more |= {"dropout_mode": mode, "dropout_p": draw(st.sampled_from([0.1, 0.5])), "scale": 0.1 / dim}
        more["dropout_seed"] = torch.tensor(draw(st.integers(0, 2**63 - 1)))
    call = make(
        q, k, v, order=order, is_causal=is_causal, normalize=normalize, return_state=draw(st.booleans()),
        out_dtype=dtypes[3], **more,
    )  # fmt: skip
    grads = output_grads(call)
    assert grads.o is not None
    strided = grads.o.mT.contiguous().mT if draw(st.booleans()) else grads.o
    has_o, has_g, has_state = draw(st.tuples(*[st.booleans()] * 3))
    has_state = has_state and call.options.return_state
    # a gradient of log_decay is a difference of sums over the whole state: of unit size, as rounding is told by that
    whole = (call.features * (value_dim + 1)) ** 0.5
    return call, OutputGrads(
        strided if has_o else None,
        grads.g if has_g else None,
        grads.state / whole if has_state and grads.state is not None else None,
    )
