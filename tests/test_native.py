"""The native kernels against the oracle: any shape, stride, dtype, form, level and number of threads."""

import ctypes
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from struct import Struct
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fastmax import fastmax_attention, fastmax_varlen_attention
from fastmax.backends import chunked, native
from fastmax.backends.native import abi
from fastmax.call import InputGrads, OutputGrads, Problem
from fastmax.core import standardize
from fastmax.features import feature_count
from tests.support import assert_within_budget, randn

pytestmark = pytest.mark.skipif(not native.levels(), reason=native.describe())

LEVELS = native.levels()
FORMS = ["dense", "factorized"]

Fields = tuple[tuple[str, str], ...]


@contextmanager
def threads(n: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def problem(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Problem:
    defaults: dict[str, Any] = {
        "order": 2,
        "is_causal": False,
        "normalize": True,
        "scale": 1.0 / q.shape[-1],
        "return_state": False,
        "out_dtype": v.dtype,
    }
    return Problem(q, k, v, **(defaults | options))


def output_grads(p: Problem, *, state: bool = True) -> OutputGrads:
    o, g, state_out = p.new_outputs()
    d_state = torch.randn_like(state_out) if p.return_state and state else None
    return OutputGrads(torch.randn_like(o), torch.randn_like(g), d_state)


def everything(
    backend: Any, p: Problem, grads: OutputGrads, saved: tuple[Tensor, Tensor] | None = None, **how: Any
) -> list[Tensor]:
    """o, g, state_out and the five gradients; those from `saved` o and g, if given."""
    o, g, state = backend.forward(p, **how)
    return [o, g, state, *backend.backward(p, *(saved or (o, g)), grads, **how)]


def in_fp64(p: Problem) -> Problem:
    wide = {
        name: None if x is None else x.double() for name, x in (("head_scale", p.head_scale), ("state_in", p.state_in))
    }
    return replace(p, q=p.q.double(), k=p.k.double(), v=p.v.double(), out_dtype=torch.float64, **wide)


def check(p: Problem, *, grads: OutputGrads | None = None, **how: Any) -> None:
    """Native against chunked in fp64, within twice the error of chunked in the precision of the problem, plus rounding."""
    grads = output_grads(p) if grads is None else grads
    wide = in_fp64(p)
    wide_grads = OutputGrads(*(None if x is None else x.double() for x in grads))
    o, g, _ = chunked.forward(p)
    exact = everything(chunked, wide, wide_grads, (o.double(), g.double()))
    same = everything(chunked, p, grads, (o, g))
    ours = everything(native, p, grads, (o, g), **how)
    for actual, oracle, dense in zip(ours, exact, same, strict=True):
        assert_within_budget(actual, oracle.double(), dense)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Anything that a backend can be given, with strides of all kinds and NaN in what must not matter."""
    torch.manual_seed(draw(st.integers(0, 1000)))
    packed = draw(st.booleans()) and draw(st.booleans())
    batch, heads, groups = (1 if packed else draw(st.integers(0, 2))), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    dim, value_dim = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    keys = draw(st.integers(0, 200))
    queries = draw(st.one_of(st.just(keys), st.integers(0, 200)))
    order = draw(st.integers(1, 2))

    def tokens(heads: int, n: int, channels: int) -> Tensor:
        layout = draw(st.sampled_from(["plain", "heads inside", "channels outside", "slice", "flipped batch"]))
        if layout == "heads inside":
            return randn(batch, n, heads, channels).transpose(1, 2)
        if layout == "channels outside":
            return randn(batch, heads, channels, n).mT
        if layout == "slice":
            return randn(batch, heads, 2 * n + 1, channels + 3)[:, :, 1::2, 2 : channels + 2]
        if layout == "flipped batch":
            return randn(heads, batch, n, channels).transpose(0, 1)
        return randn(batch, heads, n, channels)

    q, k, v = tokens(heads * groups, queries, dim), tokens(heads, keys, dim), tokens(heads, keys, value_dim)
    mask = None
    if draw(st.booleans()):
        mask = torch.rand(batch, draw(st.sampled_from([1, heads])), keys) < 0.7
        k, v = (torch.where(mask.unsqueeze(-1), x, torch.nan) for x in (k, v))
    cu: dict[str, Tensor] = {}
    states = batch
    if packed:
        states = draw(st.integers(1, 4))
        for name, n in (("cu_seqlens_q", queries), ("cu_seqlens_k", keys)):
            cuts = sorted(draw(st.integers(0, n)) for _ in range(states - 1))
            cu[name] = torch.tensor([0, *cuts, n], dtype=draw(st.sampled_from([torch.int32, torch.int64])))
    state = None
    if draw(st.booleans()):  # of keys that there might have been, so that no denominator vanishes
        before = problem(
            randn(states, heads, 0, dim), randn(states, heads, 9, dim), randn(states, heads, 9, value_dim),
            order=order, return_state=True,
        )  # fmt: skip
        state = chunked.forward(before)[2]
    return problem(
        q,
        k,
        v,
        order=order,
        is_causal=draw(st.booleans()),
        normalize=draw(st.booleans()) or order == 1,
        return_state=draw(st.booleans()),
        head_scale=torch.rand(heads * groups, dtype=torch.float64) if draw(st.booleans()) else None,
        key_mask=mask,
        state_in=state,
        **cu,
    )


@settings(max_examples=150)
@given(
    p=problems(),
    form=st.sampled_from([None, *FORMS]),
    level=st.sampled_from(LEVELS),
    workers=st.integers(1, 3),
    has=st.tuples(*[st.booleans()] * 3),
)
def test_any_problem(p: Problem, form: str | None, level: str, workers: int, has: tuple[bool, bool, bool]) -> None:
    grads = OutputGrads(*(x if wanted else None for x, wanted in zip(output_grads(p), has, strict=True)))
    with threads(workers):
        check(p, grads=grads, form=form, level=level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dim", [32, 64, 128])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("order", [1, 2])
def test_the_usual_head_sizes_in_fp32(order: int, form: str, is_causal: bool, dim: int, level: str) -> None:
    q, k, v = (randn(1, 2, 300, dim, dtype=torch.float32) for _ in range(3))
    check(problem(q, k, v, order=order, is_causal=is_causal), form=form, level=level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("dim", "value_dim"), [(256, 1), (1, 256), (250, 7)])
def test_the_largest_head_sizes(dim: int, value_dim: int, level: str) -> None:
    p = problem(randn(1, 1, 40, dim), randn(1, 1, 40, dim), randn(1, 1, 40, value_dim))
    check(p, form="factorized", level=level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("order", [3, 4])
def test_higher_orders_in_the_dense_form(order: int, is_causal: bool, level: str) -> None:
    p = problem(randn(1, 4, 90, 6), randn(1, 2, 90, 6), randn(1, 2, 90, 5), order=order, is_causal=is_causal)
    check(p, level=level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("qk", "values", "out"),
    [
        (torch.bfloat16, torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float16, torch.float16),
        (torch.float32, torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.float32, torch.float32),
        (torch.float16, torch.bfloat16, torch.bfloat16),
        (torch.float32, torch.float64, torch.float64),
    ],
)
def test_half_and_mixed_types(qk: torch.dtype, values: torch.dtype, out: torch.dtype, form: str, level: str) -> None:
    q, k, v = randn(2, 2, 90, 20, dtype=qk), randn(2, 2, 90, 20, dtype=qk), randn(2, 2, 90, 13, dtype=values)
    check(problem(q, k, v, out_dtype=out, is_causal=True), form=form, level=level)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_convert_as_torch_does(dtype: torch.dtype) -> None:
    """Every bit pattern goes in, and values between all neighbours come out, as a copy by torch would."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    finite = every[every.isfinite()]
    near = finite.float().sort().values
    ties = near[:-1] / 2 + near[1:] / 2
    between = torch.cat([near, ties, near * 1.0001, torch.tensor([7e4])])
    query = torch.zeros(1, 1, 1, 1)
    for level in native.levels():
        for values, out in ((finite, torch.float32), (between, dtype)):
            for v in values.reshape(1, 1, 1, -1).split(256, -1):  # there is one key: o is its value
                o, _, _ = native.forward(problem(query, query, v, out_dtype=out), level=level)
                assert torch.equal(o, v.to(out))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_every_level(level: str, dtype: torch.dtype) -> None:
    for dim, value_dim in ((32, 32), (19, 37)):
        for is_causal in (False, True):
            q, k, v = (randn(1, 2, 150, n, dtype=dtype) for n in (dim, dim, value_dim))
            p = problem(q, k, v, is_causal=is_causal, return_state=True)
            check(p, form="factorized", level=level)
            check(replace(p, return_state=False), form="dense", level=level)


def test_an_unknown_level_is_refused() -> None:
    q = randn(1, 1, 3, 4)
    with pytest.raises(ValueError, match=r"level must be one that runs here.*got 'sse9'"):
        native.forward(problem(q, q, q), level="sse9")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_causal", [False, True])
def test_same_inputs_same_bits_with_any_threads(is_causal: bool, form: str, workers: int, level: str) -> None:
    q, k, v = (randn(1, 2, 700, 16, dtype=torch.float32) for _ in range(3))
    p = problem(q, k, v, is_causal=is_causal, head_scale=torch.rand(2))
    grads = output_grads(p)
    with threads(workers):
        first = everything(native, p, grads, form=form, level=level)
        for _ in range(5):
            assert all(map(torch.equal, first, everything(native, p, grads, form=form, level=level)))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_the_future_does_not_leak(form: str, workers: int, level: str) -> None:
    q, k, v = (randn(1, 1, 500, 24, dtype=torch.float32) for _ in range(3))
    with threads(workers):
        before, _, _ = native.forward(problem(q, k, v, is_causal=True), form=form, level=level)
        for i in (0, 15, 16, 63, 64, 127, 128, 200, 498):
            changed = [x.clone() for x in (q, k, v)]
            for x in changed:
                x[..., i + 1 :, :] = 1e4 * randn(1, 1, 499 - i, 24)
            after, _, _ = native.forward(problem(*changed, is_causal=True), form=form, level=level)
            assert torch.equal(after[..., : i + 1, :], before[..., : i + 1, :]), i


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_causal", [False, True])
def test_padding_does_not_matter(is_causal: bool, form: str, workers: int, level: str) -> None:
    q, k, v = (randn(2, 1, 300, 24, dtype=torch.float32) for _ in range(3))
    mask = torch.rand(2, 1, 300) < 0.6
    mask[:, :, :2] = False
    results = []
    for content in (0.0, 1e30, torch.nan):
        padded = [torch.where(mask.unsqueeze(-1), x, content) for x in (k, v)]
        p = problem(q, *padded, is_causal=is_causal, key_mask=mask)
        torch.manual_seed(1)
        with threads(workers):
            results.append(everything(native, p, output_grads(p), form=form, level=level))
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))
    o, g, _, _, dk, dv, _, _ = results[0]
    assert (dk[~mask] == 0).all()
    assert (dv[~mask] == 0).all()
    if is_causal:  # the first two queries have no key at all
        assert (o[:, :, :2] == 0).all()
        assert (g[:, :, :2] == 0).all()


def test_strided_inputs_are_read_in_place() -> None:
    """A projection of (B, N, 3, H, D), split and transposed: nothing of its size is allocated but the output."""
    x = randn(1, 2000, 3, 4, 64, dtype=torch.float32)
    q, k, v = (y.transpose(1, 2) for y in x.unbind(2))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        o, g, _ = native.forward(problem(q, k, v))
    allocated = sum(max(0, event.self_cpu_memory_usage) for event in profile.events())
    assert allocated <= o.nbytes + g.nbytes + 4096
    assert o.transpose(1, 2).is_contiguous()
    check(problem(q[:, :, :100], k[:, :, :100], v[:, :, :100]))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        (torch.float32, 1e19),
        (torch.float32, 8e37),
        (torch.bfloat16, 1e38),
        (torch.float64, 1e170),
        (torch.float64, 4e307),
    ],
)
def test_huge_tokens_are_standardized_too(dtype: torch.dtype, size: float, form: str, level: str) -> None:
    """A power of two more or less in a token changes nothing but its gradient, up to the largest number there is."""
    q, k, v = (randn(1, 2, 40, 19, dtype=dtype).clamp(-4, 4) for _ in range(3))
    k[:, :, 3:5] = 1.0  # constant, one of them huge
    large = torch.full((40, 1), 2.0**24, dtype=torch.float64)  # so that eps is nothing to it
    huge = large.clone()
    huge[::2] = 2.0 ** (round(math.log2(size)) - 2)
    grads = output_grads(problem(q, k, v))
    tolerance = 64 * torch.finfo(dtype).eps
    for backend, how in ((native, {"form": form, "level": level}), (chunked, {})):
        results = []
        for by in (large, huge):
            x = everything(backend, problem(q * by.to(dtype), k * by.to(dtype), v), grads, **how)
            unit = by.index_fill(
                0, torch.tensor([3, 4]), 1.0
            )  # a constant token has its gradient from eps, at any size
            results.append([*x[:3], x[3].double() * by, x[4].double() * unit, *x[5:]])
        for a, b in zip(*results, strict=True):
            bound = tolerance * max([1.0, *b.abs().flatten().tolist()])
            torch.testing.assert_close(a, b, rtol=0, atol=bound)


@pytest.mark.parametrize("level", LEVELS)
def test_a_step_standardizes_huge_tokens_too(level: str) -> None:
    q, v = randn(1, 2, 8, dtype=torch.float32), randn(1, 2, 8, dtype=torch.float32)
    o = [
        native.step(x, x, v, torch.ones(1, 2, feature_count(8, 2), 9), order=2, scale=1.0, level=level)
        for x in (1e6 * q, 2.0**66 * 1e6 * q)
    ]
    torch.testing.assert_close(o[0], o[1])


def test_tokens_that_are_not_finite_stay_so() -> None:
    for bad in (torch.inf, torch.nan):
        q = torch.randn(1, 1, 4, 8)
        q[0, 0, 2, 3] = bad
        o, _, _ = native.forward(problem(q, torch.randn(1, 1, 4, 8), torch.randn(1, 1, 4, 8)))
        assert o[0, 0, 2].isnan().all()
        assert o[0, 0, :2].isfinite().all()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("is_causal", [False, True])
def test_fp32_sums_over_two_million_keys(is_causal: bool, workers: int) -> None:
    """Adding one chunk after another to a state in fp32 loses 2e-6 of the sums here, and 2e-4 if keys are alike."""
    torch.manual_seed(0)
    n, dim = 2**21, 4
    q, k, v = randn(1, 1, 1, dim), randn(1, 1, n, dim), torch.rand(1, 1, n, 3, dtype=torch.float64)
    k[:, :, ::2] = k[:, :, :1]
    k, v = k.float(), v.float()
    q = q.float().expand(1, 1, n, dim) if is_causal else q.float()
    with threads(workers):
        o, _, state = native.forward(problem(q, k, v, is_causal=is_causal, return_state=True, scale=1.0))
        wide = [x.double() for x in (q, k, v)]
        exact, _, exact_state = native.forward(problem(*wide, is_causal=is_causal, return_state=True, scale=1.0))
    assert (state.double() - exact_state).norm() <= 3e-7 * exact_state.norm()
    assert (o[..., -64:, :].double() - exact[..., -64:, :]).norm() <= 1e-6 * exact[..., -64:, :].norm()


@pytest.mark.parametrize("order", [1, 2])
def test_fp32_sums_over_a_million_keys(order: int) -> None:
    """The last outputs against fp64: sums in two levels keep the error of each output near that of a single rounding."""
    n = 2**20
    q, k, v = (torch.randn(1, 1, n, 16) for _ in range(3))
    p = problem(q, k, v, order=order, is_causal=True)
    o, _, _ = native.forward(p)
    x, y = standardize(q[0, 0, -64:].double()) * p.scale, standardize(k[0, 0].double())
    s = x @ y.mT
    weights = (1 + s + (s.square() / 2 if order == 2 else 0)).tril(n - 64)
    exact = weights @ v[0, 0].double() / weights.sum(-1, keepdim=True)
    assert (o[0, 0, -64:].double() - exact).norm() <= 1e-5 * exact.norm()


def test_scratch_memory_is_small() -> None:
    """Forward and backward over a long sequence stay within 1.5 times the tensors that must exist."""
    script = """
import resource, torch
from fastmax.backends import native
from fastmax.call import OutputGrads, Problem
torch.set_num_threads(2)
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
n = 2**18
q, k, v, do = (torch.randn(1, 1, n, 32) for _ in range(4))
small = [x[:, :, :256] for x in (q, k, v)]
native.forward(Problem(*small, 2, True, True, 1 / 32, False, torch.float32))
before = peak()
p = Problem(q, k, v, 2, True, True, 1 / 32, False, torch.float32)
o, g, _ = native.forward(p)
native.backward(p, o, g, OutputGrads(do, None, None))
print((peak() - before + 4 * q.nbytes) / (8 * q.nbytes))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(run.stdout) <= 1.5


def test_loading_changes_no_floating_point_mode() -> None:
    script = """
import torch
from fastmax.backends import native
assert native.levels()
q = torch.randn(1, 1, 8, 4)
from fastmax import fastmax_attention
fastmax_attention(q, q, q, backend="native")
tiny = torch.tensor([1e-40])
assert (tiny / 2).item() != 0 and 5e-324 * 1.0 != 0
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_public_functions_reach_it() -> None:
    q, k, v = randn(2, 4, 50, 8, grad=True), randn(2, 2, 50, 8, grad=True), randn(2, 2, 50, 8, grad=True)
    ours = fastmax_attention(q, k, v, enable_gqa=True, is_causal=True, backend="native")
    theirs = fastmax_attention(q, k, v, enable_gqa=True, is_causal=True, backend="chunked")
    for a, b in zip(
        torch.autograd.grad(ours.sum(), (q, k, v)), torch.autograd.grad(theirs.sum(), (q, k, v)), strict=True
    ):
        torch.testing.assert_close(a, b)
    cu = torch.tensor([0, 20, 50])
    x = randn(50, 2, 8)
    packed = fastmax_varlen_attention(x, x, x, cu, cu, backend="native")
    torch.testing.assert_close(packed, fastmax_varlen_attention(x, x, x, cu, cu, backend="chunked"))


def test_what_it_refuses() -> None:
    q = randn(1, 1, 4, 8)
    assert native.unsupported(problem(q, q, q)) is None
    assert "257" in str(native.unsupported(problem(q, q, randn(1, 1, 4, 257))))
    assert "no state" in str(native.unsupported(problem(q, q, q, order=3, return_state=True)))
    long = randn(1, 1, 1, 4).expand(1, 1, 100_000, 4)
    assert "slow" in str(native.unsupported(problem(long, long, long, order=3)))
    on_meta = [x.to("meta") for x in (q, q, q)]
    assert "meta" in str(native.unsupported(problem(*on_meta)))
    with pytest.raises(ValueError, match="only the dense form"):
        native.forward(problem(q, q, q, order=3), form="factorized")


def test_a_missing_library_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    abi.load.cache_clear()
    monkeypatch.setattr(abi, "find_spec", lambda _: None)
    try:
        q = randn(1, 1, 4, 8)
        assert native.describe().startswith("missing: the kernels were not built")
        assert native.levels() == ()
        assert "not built" in str(native.unsupported(problem(q, q, q)))
        assert fastmax_attention(q, q, q).shape == q.shape
        with pytest.raises(ValueError, match="not built"):
            fastmax_attention(q, q, q, backend="native")
    finally:
        abi.load.cache_clear()


def kernel_layout() -> str:
    """What the compiled kernels say of their side of the boundary."""
    found = find_spec("fastmax.backends.native._kernels")
    assert found is not None
    layout = ctypes.CDLL(found.origin).fm_layout
    layout.restype = ctypes.c_char_p
    return str(layout().decode())


@pytest.mark.parametrize(
    ("right", "wrong", "named"),
    [
        ("head_dim int, value_dim int", "value_dim int, head_dim int", "FmCall is 'head_dim int'.*'value_dim int'"),
        ("scale real", "scale int", "FmCall is 'scale real'.*'scale int'"),
        ("state pointer, ", "", "FmStep is 'state pointer'.*'nothing'"),
        ("state pointer, ", "state pointer, more int, ", "FmStep is 'nothing'.*'more int'"),
        ("token_stride int", "stride int", "FmTensor is 'token_stride int'.*'stride int'"),
        ("BF16 2, F16 3", "F16 2, BF16 3", "FmType is 'BF16 2'.*'F16 2'"),
        ("FmForm: ", "Form: ", "FmForm is 'DENSE 1'.*'nothing'"),
    ],
)
def test_another_layout_is_named_by_its_first_field(right: str, wrong: str, named: str) -> None:
    text = kernel_layout()
    assert abi.layout_difference(text) is None
    assert right in text
    difference = abi.layout_difference(text.replace(right, wrong, 1))
    assert difference is not None
    assert re.search(named, difference), difference


def test_kernels_of_another_layout_are_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    swapped = list(abi.CALL_FIELDS)
    i = swapped.index(("head_dim", "int"))
    swapped[i], swapped[i + 1] = swapped[i + 1], swapped[i]
    monkeypatch.setattr(abi, "CALL_FIELDS", tuple(swapped))
    abi.load.cache_clear()
    try:
        assert "field 6 of FmCall is 'value_dim int' in abi.py and 'head_dim int' in the kernels" in native.describe()
    finally:
        abi.load.cache_clear()


def packed(fields: Fields, layout: Struct, **values: Any) -> bytes:
    """A structure by the names of its fields; all others are zero."""
    flat: list[Any] = []
    for name, kind in fields:
        flat += values.pop(name, abi.NO_TENSOR) if kind == "tensor" else [values.pop(name, 0)]
    assert not values, values
    return layout.pack(*flat)


REFUSED: list[tuple[dict[str, int], str]] = [
    ({"order": 5}, "order must be 1 to 4.* order 5"),
    ({"order": 0}, "order must be 1 to 4.* order 0"),
    ({"order": 3, "form": 2}, "1 or 2 in the factorized one.* order 3"),
    ({"type": 2}, "arithmetic must be float32 or float64.* type 2"),
    ({"v": 9}, "a tensor one of these.*'v': 9"),
    ({"head_dim": 257}, "must be 1 to 256.* head_dim 257"),
    ({"form": 3}, "form must be 1 .* form 3"),
    ({"chunk": 48}, "chunk must be a multiple of 32.* chunk 48"),
    ({"chunk": 0}, "chunk must be a multiple of 32.* chunk 0"),
]
REFUSED_STEPS = [case for case in REFUSED if not {"form", "chunk"} & set(case[0])] + [
    ({"order": 3}, "a step.* order 3")
]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("function", "wrong", "message"),
    [(f, *case) for f in ("forward", "backward") for case in REFUSED] + [("step", *case) for case in REFUSED_STEPS],
)
def test_the_kernels_refuse_values_they_do_not_know(
    function: str, wrong: dict[str, int], message: str, level: str
) -> None:
    library = abi.load()
    assert isinstance(library, abi.Library)
    fields, layout = (abi.STEP_FIELDS, abi.STEP) if function == "step" else (abi.CALL_FIELDS, abi.CALL)
    x, o = torch.ones(1, 1, 2, 4), torch.full((1, 1, 2, 4), 7.0)
    values: dict[str, Any] = {
        "type": 0, "batch": 1, "query_heads": 1, "key_heads": 1, "head_dim": 4, "value_dim": 4, "order": 1, "scale": 1.0,
        "q": abi.tensor(x), "k": abi.tensor(x), "v": abi.tensor(x), "o": abi.tensor(o),
    }  # fmt: skip
    if function == "step":
        state = torch.zeros(5, 5)
        values |= {"state": state.data_ptr()}
    else:
        values |= {"queries": 2, "keys": 2, "chunk": 64, "sequences": -1, "form": 1}
    if function == "backward":
        g, grads = torch.ones(1, 1, 2), [torch.empty_like(x) for _ in range(3)]
        values |= {"g": abi.tensor(g)} | dict(zip(("d_q", "d_k", "d_v"), map(abi.tensor, grads), strict=True))
    library.run(function, packed(fields, layout, **values), level)
    o.fill_(7.0)
    wrong_values: dict[str, Any] = {n: (*values[n][:4], x) if n == "v" else x for n, x in wrong.items()}
    with pytest.raises(ValueError, match=rf"native.{function}: .*{message}"):
        library.run(function, packed(fields, layout, **(values | wrong_values)), level)
    assert (o == 7).all()


def test_a_missing_thread_pool_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "thread" not in native.describe()
    monkeypatch.setattr(abi, "_torch_parallel_for", lambda: None)
    abi.load.cache_clear()
    try:
        assert "one thread, as torch's thread pool was not found" in native.describe()
        check(problem(randn(1, 2, 40, 8), randn(1, 2, 40, 8), randn(1, 2, 40, 8)))
    finally:
        abi.load.cache_clear()


def test_describe_names_the_level_in_use() -> None:
    assert native.describe().startswith(native.levels()[0])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("order", "dim", "value_dim", "groups"), [(2, 64, 64, 1), (2, 19, 37, 3), (1, 16, 33, 2)])
def test_steps_equal_a_causal_call(
    order: int, dim: int, value_dim: int, groups: int, dtype: torch.dtype, level: str
) -> None:
    q, k, v = (randn(2, h, 6, n, dtype=dtype) for h, n in ((2 * groups, dim), (2, dim), (2, value_dim)))
    mask = torch.tensor([False, True, True, False, True, True]).expand(2, 1, 6)
    k[:, :, 3] = torch.nan
    scale = torch.rand(2 * groups)
    p = problem(q, k, v, order=order, is_causal=True, head_scale=scale, key_mask=mask, return_state=True)
    exact = chunked.forward(in_fp64(p))
    same = chunked.forward(p)
    for workers in (1, 2):
        state = torch.zeros(p.state_shape, dtype=p.dtype)
        with threads(workers):
            o = [
                native.step(
                    q[:, :, i], k[:, :, i], v[:, :, i], state, order=order, scale=p.scale, head_scale=scale,
                    key_mask=mask[:, :, i], level=level,
                )
                for i in range(6)
            ]  # fmt: skip
        assert_within_budget(torch.stack(o, 2), exact[0], same[0])
        assert_within_budget(state, exact[2], same[2])


def test_a_step_refuses_what_it_cannot() -> None:
    q, state = randn(1, 1, 4), torch.zeros(1, 1, feature_count(4, 2), 5, dtype=torch.float64)
    with pytest.raises(ValueError, match="not contiguous"):
        native.step(q, q, q, state.mT.contiguous().mT, order=2, scale=1.0)
    with pytest.raises(ValueError, match="orders 1 and 2, not 3"):
        native.step(q, q, q, state, order=3, scale=1.0)
    with pytest.raises(ValueError, match=r"state must be \(1, 1, 15, 5\) of torch.float64"):
        native.step(q, q, q, state[:, :, :5].contiguous(), order=2, scale=1.0)


@pytest.fixture
def _nan_in_fresh_memory() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)  # which fills what torch.empty returns
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_nan_in_fresh_memory")
def test_empty_problems() -> None:
    for batch, queries, keys in ((0, 3, 3), (1, 0, 3), (1, 3, 0), (1, 0, 0)):
        q, k = randn(batch, 1, queries, 4), randn(batch, 1, keys, 4)
        for form in FORMS:
            for is_causal in (False, True):
                p = problem(q, k, k, is_causal=is_causal, head_scale=torch.ones(1, dtype=torch.float64))
                o, g, _ = native.forward(p, form=form)
                if keys == 0:
                    assert (o == 0).all()
                    assert (g == 0).all()
                grads = native.backward(p, o, g, output_grads(p), form=form)
                assert isinstance(grads, InputGrads)
                assert all((x == 0).all() for x in grads) or (batch and queries and keys)
