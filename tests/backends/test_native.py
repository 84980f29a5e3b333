"""Properties of the native kernels alone: their boundary, layouts, conversions, memory, long sums, and what they refuse."""

import ctypes
import math
import re
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from fastmax import _torch_private, fastmax_attention, reference_attention
from fastmax.backends import chunked, native
from fastmax.backends.native import abi
from fastmax.call import OutputGrads
from fastmax.core import standardize
from fastmax.plan import FORMS, Plan
from fastmax.state import FastmaxState
from tests.backends.conformance import Variant, check, make, output_grads, threads
from tests.support import randn

pytestmark = pytest.mark.skipif(not native.levels(), reason=native.describe())

LEVELS = pytest.mark.parametrize("level", native.levels())


def at(level: str, form: str = "factorized") -> Variant:
    return Variant("native", level, "cpu", form)


@LEVELS
@pytest.mark.parametrize(("dim", "value_dim"), [(256, 1), (1, 256), (250, 7)])
def test_the_largest_head_sizes(dim: int, value_dim: int, level: str) -> None:
    check(at(level), make(randn(1, 1, 40, dim), randn(1, 1, 40, dim), randn(1, 1, 40, value_dim)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_convert_as_torch_does(dtype: torch.dtype) -> None:
    """Every bit pattern goes in, and values between all neighbours come out, as a copy by torch would.

    Denormals of fp32, which bf16 has too, count as zeros.
    """
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    finite = every[every.isfinite()]
    near = finite.float().sort().values
    ties = near[:-1] / 2 + near[1:] / 2
    between = torch.cat([near, ties, near * 1.0001, torch.tensor([7e4])])
    query = torch.zeros(1, 1, 1, 1)
    for level in native.levels():
        for values, out in ((finite, torch.float32), (between, dtype)):
            for v in values.reshape(1, 1, 1, -1).split(256, -1):  # there is one key: o is its value
                o, _, _ = native.forward(make(query, query, v, out_dtype=out), Plan(level=level))
                assert torch.equal(o, v.where(v.float().abs() >= torch.finfo(torch.float32).tiny, 0).to(out))


@pytest.mark.skipif(abi.BF16_LEVEL not in native.levels(), reason="this processor does not multiply pairs of bf16")
@pytest.mark.parametrize(
    ("dim", "value_dim", "n"), [(64, 64, 500), (33, 17, 97), (128, 32, 193), (1, 1, 5), (32, 5, 1)]
)
@pytest.mark.parametrize("is_causal", [False, True])
def test_products_of_bf16_pairs(dim: int, value_dim: int, n: int, is_causal: bool) -> None:
    """At most thrice the error of the same form in torch with every factor of a product rounded to bf16."""

    def rounded(x: torch.Tensor) -> torch.Tensor:
        return x + (x.bfloat16().to(x.dtype) - x).detach()

    inputs = [randn(1, 2, n, size, dtype=torch.bfloat16) for size in (dim, dim, value_dim)]
    call = make(*inputs, is_causal=is_causal, scale=1.0, out_dtype=torch.bfloat16)
    grads = output_grads(call)._replace(g=None, state=None)
    assert grads.o is not None
    results = []
    for dtype, cut in ((torch.float64, lambda x: x), (torch.float32, rounded)):
        leaves = [x.to(dtype).requires_grad_() for x in inputs]
        x, y = (cut(standardize(leaf)) for leaf in leaves[:2])
        s = x @ y.mT
        weights = cut(1 + s + s * s / 2)
        weights = weights.tril() if is_causal else weights
        o = weights @ leaves[2] / weights.sum(-1, keepdim=True)
        results.append([cut(z).detach() for z in (o, *torch.autograd.grad(o, leaves, grads.o.to(dtype)))])
    plan = Plan("dense", level=abi.BF16_LEVEL)
    o, g, _ = native.forward(call, plan)
    found = native.backward(call, plan, o, g, grads)
    if n > 90:
        not_rounded = native.forward(call, Plan("dense", level="generic"))[1]
        assert (g - not_rounded).abs().max() > 1e-5 * not_rounded.abs().max(), "these must be rounded"
    for actual, exact, by_torch in zip((o, *found[:3]), *results, strict=True):
        bound = 3 * (by_torch.double() - exact).abs().max() + torch.finfo(torch.bfloat16).eps * exact.abs().max()
        assert (actual.double() - exact).abs().max() <= bound


def test_an_unknown_level_is_refused() -> None:
    q = randn(1, 1, 3, 4)
    with pytest.raises(ValueError, match=r"level must be one that runs here.*got 'sse9'"):
        native.forward(make(q, q, q), Plan(level="sse9"))


def test_strided_inputs_are_read_in_place() -> None:
    """A projection of (B, N, 3, H, D), split and transposed: nothing of its size is allocated but the output."""
    x = randn(1, 2000, 3, 4, 64, dtype=torch.float32)
    q, k, v = (y.transpose(1, 2) for y in x.unbind(2))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        o, g, _ = native.forward(make(q, k, v))
    allocated = sum(max(0, event.self_cpu_memory_usage) for event in profile.events())
    assert allocated <= o.nbytes + g.nbytes + 4096
    assert o.transpose(1, 2).is_contiguous()


@LEVELS
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
@pytest.mark.parametrize("dim", [19, 32])
def test_huge_tokens_are_standardized_too(dtype: torch.dtype, size: float, form: str, level: str, dim: int) -> None:
    """A power of two more or less in a token changes nothing but its gradient, up to the largest number there is.

    That of the largest is a denormal, which the kernels take for zero.
    """
    q, k, v = (randn(1, 2, 40, dim, dtype=dtype).clamp(-4, 4) for _ in range(3))
    k[:, :, 3:5] = 1.0  # constant, one of them huge
    large = torch.full((40, 1), 2.0**24, dtype=torch.float64)  # so that eps is nothing to it
    huge = large.clone()
    huge[::2] = 2.0 ** (round(math.log2(size)) - 2)
    grads = output_grads(make(q, k, v))._replace(state=None)
    tolerance = 64 * torch.finfo(dtype).eps
    for backend, plan in ((native, Plan(form, level=level)), (chunked, Plan(form))):
        results = []
        for by in (large, huge):
            call = make(q * by.to(dtype), k * by.to(dtype), v)
            o, g, _ = backend.forward(call, plan)
            found = backend.backward(call, plan, o, g, grads)
            # a constant token has its gradient from eps, at any size
            unit = by.index_fill(0, torch.tensor([3, 4]), 1.0)
            results.append([o, g, found.q.double() * by, found.k.double() * unit, found.v])
        tiny = 1.001 * torch.finfo(call.dtype).tiny * by
        for i, (a, b) in enumerate(zip(*results, strict=True)):
            bound = tolerance * max([1.0, *b.abs().flatten().tolist()])
            expected = torch.where((b == 0) & (a.abs() <= tiny), 0, a) if backend is native and i in (2, 3) else a
            torch.testing.assert_close(b, expected, rtol=0, atol=bound)


@LEVELS
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dim", [8, 32])
def test_tokens_that_are_not_finite_stay_so(form: str, level: str, dim: int) -> None:
    for bad in (torch.inf, torch.nan):
        q = torch.randn(1, 1, 40, dim)
        q[0, 0, 2, 3] = bad
        o, _, _ = native.forward(
            make(q, torch.randn(1, 1, 40, dim), torch.randn(1, 1, 40, dim)), Plan(form, level=level)
        )
        assert o[0, 0, 2].isnan().all()
        assert o[0, 0, :2].isfinite().all()
        assert o[0, 0, 3:].isfinite().all()


@LEVELS
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("normalize", ["standardize", "rms"])
@pytest.mark.parametrize("dim", [24, 32])
def test_queries_do_not_touch_one_another(form: str, level: str, normalize: str, dim: int) -> None:
    """Bit for bit, though many are normalized at once: a constant one, a huge one, one far from zero."""
    q, k, v = (torch.randn(1, 2, 70, dim) for _ in range(3))
    odd = q.clone()
    odd[:, :, 3], odd[:, :, 17], odd[:, :, 33] = 2.5, 1e30 * q[:, :, 17], q[:, :, 33] + 1e4
    plan = Plan(form, level=level)
    before, after = (native.forward(make(x, k, v, normalize=normalize), plan)[0] for x in (q, odd))
    others = [i for i in range(70) if i not in (3, 17, 33)]
    assert torch.equal(after[:, :, others], before[:, :, others])
    torch.testing.assert_close(after[:, :, 17], before[:, :, 17], rtol=1e-5, atol=1e-5)
    if normalize == "standardize":  # to rms the mean counts
        torch.testing.assert_close(after[:, :, 3], v.mean(2), rtol=1e-5, atol=1e-5)
        exact = reference_attention(odd[:, :, 33:34].double(), k.double(), v.double(), scale=0.7 / dim)
        torch.testing.assert_close(after[:, :, 33:34].double(), exact, rtol=1e-3, atol=1e-3)


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
        o, _, state = native.forward(make(q, k, v, is_causal=is_causal, return_state=True, scale=1.0))
        wide = [x.double() for x in (q, k, v)]
        exact, _, exact_state = native.forward(make(*wide, is_causal=is_causal, return_state=True, scale=1.0))
    assert (state.double() - exact_state).norm() <= 3e-7 * exact_state.norm()
    assert (o[..., -64:, :].double() - exact[..., -64:, :]).norm() <= 1e-6 * exact[..., -64:, :].norm()


@pytest.mark.parametrize("order", [1, 2])
def test_fp32_sums_over_a_million_keys(order: int) -> None:
    """The last outputs against fp64: sums in two levels keep the error of each output near that of a single rounding."""
    n = 2**20
    q, k, v = (torch.randn(1, 1, n, 16) for _ in range(3))
    call = make(q, k, v, order=order, is_causal=True)
    o, _, _ = native.forward(call)
    x, y = standardize(q[0, 0, -64:].double()) * call.scale, standardize(k[0, 0].double())
    s = x @ y.mT
    weights = (1 + s + (s.square() / 2 if order == 2 else 0)).tril(n - 64)
    exact = weights @ v[0, 0].double() / weights.sum(-1, keepdim=True)
    assert (o[0, 0, -64:].double() - exact).norm() <= 1e-5 * exact.norm()


def test_scratch_memory_is_small() -> None:
    """Forward and backward over a long sequence stay within 1.5 times the tensors that must exist."""
    script = """
import resource, torch
from fastmax.backends import native
from fastmax.call import Call, Options, OutputGrads
from fastmax.plan import RULE
torch.set_num_threads(2)
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
n = 2**18
q, k, v, do = (torch.randn(1, 1, n, 32) for _ in range(4))
small = [x[:, :, :256] for x in (q, k, v)]
options = Options(is_causal=True, scale=1 / 32, out_dtype=torch.float32)
native.forward(Call(*small, options=options), RULE)
before = peak()
call = Call(q, k, v, options=options)
o, g, _ = native.forward(call, RULE)
native.backward(call, RULE, o, g, OutputGrads(do, None, None))
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


@LEVELS
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_causal", [True, False])
def test_denormals_are_zeros_inside_and_stay_outside(is_causal: bool, form: str, level: str) -> None:
    """Values and gradients below 1.2e-38 give zeros, and no thread of the pool is left in another mode."""
    denormal = torch.full((2**17,), 1e-40)
    q, k = randn(1, 4, 200, 8, dtype=torch.float32), randn(1, 4, 200, 8, dtype=torch.float32)
    small = torch.full((1, 4, 200, 8), 1e-40)
    do = torch.ones_like(small)
    plan = Plan(form, level=level)
    call = make(q, k, small, is_causal=is_causal)
    with threads(4):
        o, g, _ = native.forward(call, plan)
        assert not o.any()
        grads = native.backward(make(q, k, do, is_causal=is_causal), plan, do, g, OutputGrads(small, None, None))
        assert not any(x.any() for x in grads)
        assert bool((denormal * 0.5 != 0).all())
        # nor is a caller's wish to flush lost
        assert torch.set_flush_denormal(True)
        try:
            native.forward(call, plan)
            assert not denormal[:8].mul(0.5).any()
        finally:
            torch.set_flush_denormal(False)


def test_a_step_leaves_the_mode_as_it_was() -> None:
    state = FastmaxState.empty(1, 2, 8, order=2, scale=1.0, normalize=True)
    one, denormal = torch.ones(1, 2, 1, 8), torch.full((1, 2, 1, 8), 1e-40)
    assert not state.step(one, one, denormal).any()
    assert (denormal * 0.5 != 0).all()


def test_what_it_refuses() -> None:
    q = randn(1, 1, 4, 8)
    assert native.unsupported(make(q, q, q)) is None
    assert "257" in str(native.unsupported(make(q, q, randn(1, 1, 4, 257))))
    assert "no state" in str(native.unsupported(make(q, q, q, order=3, return_state=True)))
    long = randn(1, 1, 1, 4).expand(1, 1, 100_000, 4)
    assert "slow" in str(native.unsupported(make(long, long, long, order=3)))
    on_meta = [x.to("meta") for x in (q, q, q)]
    assert "meta" in str(native.unsupported(make(*on_meta)))
    with pytest.raises(ValueError, match="only the dense form"):
        native.forward(make(q, q, q, order=3), Plan("factorized"))


def test_a_missing_library_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    abi.load.cache_clear()
    monkeypatch.setattr(abi, "find_spec", lambda _: None)
    try:
        q = randn(1, 1, 4, 8)
        assert native.describe().startswith("missing: the kernels were not built")
        assert native.levels() == ()
        assert "not built" in str(native.unsupported(make(q, q, q)))
        assert fastmax_attention(q, q, q).shape == q.shape
        with pytest.raises(ValueError, match="not built"):
            fastmax_attention(q, q, q, backend="native")
    finally:
        abi.load.cache_clear()


def kernel_layout() -> str:
    """Return the layout that the compiled kernels report for their side of the boundary."""
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
        (", state_is_total int", "", "FmCall is 'state_is_total int'.*'nothing'"),
        ("state_is_total int", "state_is_total int, more int", "FmCall is 'nothing'.*'more int'"),
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


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"order": 5}, "order must be 1 to 4.* order 5"),
    ({"order": 0}, "order must be 1 to 4.* order 0"),
    ({"order": 3, "form": 2}, "1 or 2 in the factorized one.* order 3"),
    ({"type": 2}, "arithmetic must be float32 or float64.* type 2"),
    ({"v": 9}, "a tensor one of these.*'v': 9"),
    ({"head_dim": 257}, "must be 1 to 256.* head_dim 257"),
    ({"form": 3}, "form must be 1 .* form 3"),
    ({"chunk": 48}, "chunk must be a multiple of 32.* chunk 48"),
    ({"chunk": 0}, "chunk must be a multiple of 32.* chunk 0"),
    ({"dropout": 4}, "dropout must be 0 to 3.* dropout 4"),
    ({"dropped": 1 << 16}, "less than 2.16 .* dropped 65536"),
    ({"dropout": 2}, "have a seed.* dropout 2"),
    ({"dropout": 3, "dropout_seed": "a seed"}, "for features, the factorized form.* form 1"),
]


@LEVELS
@pytest.mark.parametrize("function", ["forward", "backward"])
@pytest.mark.parametrize(("wrong", "message"), REFUSED)
def test_the_kernels_refuse_values_they_do_not_know(
    function: str, wrong: dict[str, Any], message: str, level: str
) -> None:
    library = abi.load()
    assert isinstance(library, abi.Library)
    x, o = torch.ones(1, 1, 2, 4), torch.full((1, 1, 2, 4), 7.0)
    values: dict[str, Any] = {
        "type": 0, "batch": 1, "query_heads": 1, "key_heads": 1, "head_dim": 4, "value_dim": 4, "order": 1, "scale": 1.0,
    }  # fmt: skip
    tensors = {"q": x, "k": x, "v": x, "o": o}
    values |= {"queries": 2, "keys": 2, "chunk": 64, "sequences": -1, "form": 1}
    if function == "backward":
        g, grads = torch.ones(1, 1, 2), [torch.empty_like(x) for _ in range(3)]
        tensors |= {"g": g} | dict(zip(("d_q", "d_k", "d_v"), grads, strict=True))
    words = abi.CALL.pack(**values)
    for name, tensor in tensors.items():
        abi.CALL.put(words, **{name: tensor})
    library.run(function, words, level)
    o.fill_(7.0)
    seed = torch.tensor(5)
    for name, value in wrong.items():
        # the type is the last field of a tensor
        words[abi.CALL.places[name] + (4 if name == "v" else 0)] = seed.data_ptr() if value == "a seed" else value
    with pytest.raises(ValueError, match=rf"native.{function}: .*{message}"):
        library.run(function, words, level)
    assert (o == 7).all()


def test_a_missing_thread_pool_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "thread" not in native.describe()
    monkeypatch.setattr(_torch_private, "parallel_for", lambda: None)
    abi.load.cache_clear()
    try:
        assert "one thread, as torch's thread pool was not found" in native.describe()
        check(at(native.levels()[0]), make(randn(1, 2, 40, 8), randn(1, 2, 40, 8), randn(1, 2, 40, 8)))
    finally:
        abi.load.cache_clear()


def test_describe_names_the_level_in_use() -> None:
    assert native.describe().startswith(native.levels()[0])
