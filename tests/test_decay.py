"""Forgetting through the public functions: against the oracle, exact gradients, extreme decays, what must not matter."""

import warnings
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import fastmax
from fastmax import attention_matrix, reference_attention
from fastmax.decay import STRONGEST, bounded
from fastmax.features import feature_count
from fastmax.plan import FORMS
from tests.support import (
    assert_within_budget,
    fastmax_attention,
    fastmax_varlen_attention,
    forced,
    gradcheck,
    randn,
    with_grads,
)  # fmt: skip

each_form = pytest.mark.parametrize("dense", [form == "dense" for form in FORMS], ids=FORMS)
either_direction = pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "both ways"])
FACTORIZED_ORDERS = [1, 2, 3, 4]
LOWEST = torch.finfo(torch.float32).min


def decays(*shape: int, dtype: torch.dtype = torch.float64, most: float = 1.0) -> Tensor:
    return (-torch.rand(shape, dtype=torch.float64) * most).to(dtype)


@each_form
@either_direction
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_against_the_oracle(backend: str, dtype: torch.dtype, is_causal: bool, dense: bool) -> None:
    """With padding and shared key heads: output and all gradients."""
    q, k, v = randn(2, 4, 150, 6, dtype=dtype), randn(2, 2, 150, 6, dtype=dtype), randn(2, 2, 150, 5, dtype=dtype)
    log_decay, do = decays(2, 2, 150, dtype=dtype, most=0.1), randn(2, 4, 150, 5, dtype=dtype)
    mask = torch.rand(2, 1, 1, 150) > 0.2

    def call(f: Any, **more: Any) -> Any:
        return lambda *x: f(*x[:3], mask, is_causal=is_causal, enable_gqa=True, log_decay=x[3], **more)

    inputs = [q, k, v, log_decay]
    with forced(dense=dense, chunk=32):
        actual = with_grads(call(fastmax_attention, backend=backend), inputs, do)
    same = with_grads(call(reference_attention), inputs, do)
    exact = with_grads(call(reference_attention), [x.double() for x in inputs], do)
    for a, b, c in zip(actual, exact, same, strict=True):
        assert_within_budget(a, b, c)


def test_the_matrix_is_the_definition() -> None:
    """exp(c_i - c_j) f(s_ij), written out; a token's own decay does not touch its own key."""
    q, k, log_decay = randn(2, 7, 3), randn(2, 7, 3), decays(2, 7)
    log_decay[:, 3] = -1e16  # no sum of these: whatever lies across it weighs nothing
    plain = attention_matrix(q, k, is_causal=False)
    for is_causal in (True, False):
        expected = torch.zeros_like(plain)
        for i in range(7):
            for j in range(7 if not is_causal else i + 1):
                between = log_decay[:, min(i, j) + 1 : max(i, j) + 1].exp().prod(-1)
                expected[:, i, j] = plain[:, i, j] * between
        expected /= expected.sum(-1, keepdim=True)
        torch.testing.assert_close(attention_matrix(q, k, is_causal=is_causal, log_decay=log_decay), expected)
        o = fastmax_attention(q, k, torch.eye(7).double().expand(2, 7, 7), is_causal=is_causal, log_decay=log_decay)
        torch.testing.assert_close(o, expected)


@each_form
@either_direction
@pytest.mark.parametrize("order", FACTORIZED_ORDERS)
def test_gradcheck(backend: str, order: int, is_causal: bool, dense: bool) -> None:
    """With padding, shared key heads and a scale per head; if causal with states, whose gradients flow too."""
    q, k, v = randn(1, 2, 4, 2, grad=True), randn(1, 1, 4, 2, grad=True), randn(1, 1, 4, 2, grad=True)
    log_decay = decays(1, 1, 4).requires_grad_()
    scale = torch.tensor([0.3, 0.2], dtype=torch.float64, requires_grad=True)
    inputs = [q, k, v, log_decay, scale]
    if is_causal:
        state = (randn(1, 1, feature_count(2, order), 3) * 0.1).index_fill(2, torch.tensor(0), 5.0)
        inputs.append(state.requires_grad_())
    mask = torch.tensor([True, True, False, True])

    def f(*x: Tensor) -> Any:
        more: dict[str, Any] = {"initial_state": x[5], "return_state": True} if is_causal else {}
        return fastmax_attention(
            *x[:3], mask, is_causal=is_causal, order=order, log_decay=x[3], scale=x[4], enable_gqa=True, backend=backend,
            **more,
        )  # fmt: skip

    with forced(dense=dense, chunk=2, budget=1, tile=2):
        assert gradcheck(f, inputs)


@each_form
@either_direction
def test_gradcheck_of_packed_sequences(backend: str, is_causal: bool, dense: bool) -> None:
    q, k, v = randn(6, 2, 2, grad=True), randn(6, 1, 2, grad=True), randn(6, 1, 2, grad=True)
    log_decay = decays(1, 6).requires_grad_()
    ends, mask = torch.tensor([0, 2, 2, 6, 6]), torch.tensor([True, True, True, False, True, True])

    def f(*x: Tensor) -> Any:
        return fastmax_varlen_attention(
            *x[:3], ends, ends, mask, is_causal=is_causal, log_decay=x[3], scale=0.4, enable_gqa=True,
            return_state=is_causal, backend=backend,
        )  # fmt: skip

    with forced(dense=dense, chunk=2, budget=1, tile=2):
        assert gradcheck(f, (q, k, v, log_decay))


@pytest.mark.parametrize("shape", [(), (1,), (30,), (2, 1), (2, 30), (3, 2, 30), (3, 1, 1), (1, 2, 30)], ids=str)
def test_shapes_broadcast(backend: str, shape: tuple[int, ...]) -> None:
    q, k, v, do = randn(3, 4, 30, 3), randn(3, 2, 30, 3), randn(3, 2, 30, 3), randn(3, 4, 30, 3)
    options: dict[str, Any] = {"is_causal": True, "enable_gqa": True}
    inputs = [q, k, v, decays(*shape)]
    actual = with_grads(lambda *x: fastmax_attention(*x[:3], log_decay=x[3], backend=backend, **options), inputs, do)
    expected = with_grads(
        lambda *x: reference_attention(*x[:3], log_decay=x[3].expand(3, 2, 30), **options), inputs, do
    )
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b)


@either_direction
def test_no_decay_has_a_gradient(backend: str, is_causal: bool) -> None:
    """That of less decay, from the side where there is any."""
    q, k, v = (randn(2, 9, 3) for _ in range(3))
    zero, some = torch.zeros(2, 9, dtype=torch.float64), torch.zeros(2, 9, dtype=torch.float64)
    some[:, 4] = -1e-6
    for f, more in ((fastmax_attention, {"backend": backend}), (reference_attention, {})):
        leaf = zero.clone().requires_grad_()
        o = f(q, k, v, is_causal=is_causal, log_decay=leaf, **more)
        (found,) = torch.autograd.grad(o.square().sum(), leaf)
        change = (o - f(q, k, v, is_causal=is_causal, log_decay=some, **more)).detach() * 2 * o.detach() / 1e-6
        torch.testing.assert_close(found[:, 4], change.sum((1, 2)), rtol=1e-4, atol=1e-5)
        assert found[:, 4].abs().min() > 1e-3


@each_form
@pytest.mark.parametrize("order", [1, 2])
def test_no_decay_gives_the_bits_of_none(backend: str, order: int, dense: bool) -> None:
    q, k, v = (randn(1, 2, 300, 16, dtype=torch.float32, grad=True) for _ in range(3))
    results = []
    for log_decay in (None, torch.zeros(2, 300)):
        with forced(dense=dense):
            o, state = fastmax_attention(
                q, k, v, is_causal=True, order=order, log_decay=log_decay, return_state=True, backend=backend
            )
            results.append([o, state, *torch.autograd.grad(o.square().sum(), (q, k, v))])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@st.composite
def extreme(draw: st.DrawFn) -> Tensor:
    """Return (1, 1, N): stretches of strong, of hardly any and of no decay."""
    values, lengths = st.sampled_from([-50.0, -1e-7, -1.0, 0.0, -1e4, -80.0, -1e16, LOWEST]), st.integers(1, 300)
    kinds = draw(st.lists(st.tuples(values, lengths), min_size=1, max_size=4))
    return torch.cat([torch.full((1, 1, n), value) for value, n in kinds], -1)


@each_form
@either_direction
@settings(max_examples=12)
@given(log_decay=extreme())
def test_extreme_decays(backend: str, is_causal: bool, dense: bool, log_decay: Tensor) -> None:
    torch.manual_seed(0)
    n = log_decay.shape[-1]
    # tokens of spread 1: that of one that is all but constant is divided by, and so is every rounding
    q, k = (fastmax.standardize(randn(1, 1, n, 8)).float() for _ in range(2))
    inputs, do = [q, k, randn(1, 1, n, 4, dtype=torch.float32), log_decay], randn(1, 1, n, 4)

    def call(f: Any, **more: Any) -> Any:
        return lambda *x: f(*x[:3], is_causal=is_causal, log_decay=x[3], **more)

    with forced(dense=dense):
        actual = with_grads(call(fastmax_attention, backend=backend), inputs, do)
    same = with_grads(call(reference_attention), inputs, do)
    exact = with_grads(call(reference_attention), [x.double() for x in inputs], do)
    for a, b, c in zip(actual, exact, same, strict=True):
        assert a.isfinite().all()
        # the gradient of log_decay is a sum over all tokens that come after, and it has the rounding of one
        sums = n**0.5 if a is actual[-1] else 1.0
        assert_within_budget(a / sums, b / sums, c / sums)


@each_form
@either_direction
@pytest.mark.parametrize("value", [-200.0, -1e12, LOWEST])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_reset_leaves_the_decays_after_it(
    backend: str, dtype: torch.dtype, value: float, is_causal: bool, dense: bool
) -> None:
    """Output and gradients; the gradient of the reset itself is 0, exactly."""
    q, k, v, do = (randn(1, 2, 100, 8, dtype=dtype) for _ in range(4))
    log_decay = decays(1, 2, 100, dtype=dtype, most=0.1)
    log_decay[..., 20::40] = max(value, torch.finfo(dtype).min)

    def call(f: Any, **more: Any) -> Any:
        return lambda *x: f(*x[:3], is_causal=is_causal, log_decay=x[3], **more)

    inputs = [q, k, v, log_decay]
    with forced(dense=dense, chunk=64):
        actual = with_grads(call(fastmax_attention, backend=backend), inputs, do)
    same = with_grads(call(reference_attention), inputs, do)
    exact = with_grads(call(reference_attention), [x.double() for x in inputs], do)
    for a, b, c in zip(actual, exact, same, strict=True):
        assert_within_budget(a, b, c)
    # beyond -104 or -746 the exponential is 0
    if value < -1000 or dtype != torch.float64:
        assert (actual[-1][..., 20::40] == 0).all()


@each_form
@pytest.mark.parametrize("value", [-1e16, LOWEST])
def test_a_state_is_handed_over_a_reset(backend: str, value: float, dense: bool) -> None:
    """In pieces, with a reset inside of each and at their borders, as in one."""
    inputs, do = [randn(1, 2, 90, 4), randn(1, 2, 90, 4), randn(1, 2, 90, 3), decays(1, 2, 90)], randn(1, 2, 90, 3)
    inputs[3][..., [0, 10, 29, 30, 45, 60, 89]] = value

    def pieces(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor) -> Tensor:
        state, outputs = None, []
        for part in torch.arange(90).split(30):
            o, state = fastmax_attention(
                *(x[:, :, part] for x in (q, k, v)), log_decay=log_decay[:, :, part], is_causal=True,
                initial_state=state, return_state=True, backend=backend,
            )  # fmt: skip
            outputs.append(o)
        return torch.cat(outputs, 2)

    with forced(dense=dense, chunk=16):
        actual = with_grads(pieces, inputs, do)
    expected = with_grads(lambda *x: reference_attention(*x[:3], log_decay=x[3], is_causal=True), inputs, do)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_bound_of_a_decay_forgets_everything(dtype: torch.dtype) -> None:
    bound = torch.tensor(STRONGEST[dtype], dtype=dtype)
    assert bound.exp() == 0
    assert (bound * 0.9).exp() > 0
    assert torch.equal(bounded(torch.stack([bound * 0.99, 2 * bound])), torch.stack([bound * 0.99, bound]))


@pytest.mark.parametrize("value", [-50.0, -1e-7])
def test_long_sequences_of_one_decay(backend: str, value: float) -> None:
    """Nothing overflows, and sums of tiny decays are not lost: against the last rows of the matrix in fp64."""
    n = 20_000
    q, k, v = (randn(1, n, 4, dtype=torch.float32, grad=True) for _ in range(3))
    log_decay = torch.full((1, n), value, requires_grad=True)
    o = fastmax_attention(q, k, v, is_causal=True, log_decay=log_decay, backend=backend)
    wide = [x.detach().double() for x in (q, k, v, log_decay)]
    rows = attention_matrix(*wide[:2], is_causal=True, log_decay=wide[3], rows=list(range(n - 50, n)))
    torch.testing.assert_close(o[:, -50:].double(), rows @ wide[2], rtol=1e-5, atol=1e-6)
    assert all(x.isfinite().all() for x in torch.autograd.grad(o.square().sum(), (q, k, v, log_decay)))


@each_form
def test_the_future_does_not_leak(backend: str, dense: bool) -> None:
    """Allow later tokens to change the rounding and no more: the native kernel leaves out keys by the largest value."""
    q, k, v = (randn(1, 2, 300, 8, dtype=torch.float32) for _ in range(3))
    log_decay = decays(2, 300, dtype=torch.float32, most=0.1)
    exact = reference_attention(q.double(), k.double(), v.double(), is_causal=True, log_decay=log_decay.double())
    plain = reference_attention(q, k, v, is_causal=True, log_decay=log_decay)
    with forced(dense=dense, chunk=64):
        for i in (0, 63, 64, 150, 298):
            changed = [torch.cat([x[..., : i + 1, :], 1e4 * x[..., i + 1 :, :]], -2) for x in (q, k, v)]
            other = torch.cat([log_decay[:, : i + 1], log_decay[:, i + 1 :] * 300], -1)
            after = fastmax_attention(*changed, is_causal=True, log_decay=other, backend=backend)
            assert_within_budget(*(x[..., : i + 1, :] for x in (after, exact, plain)))


@each_form
@either_direction
@pytest.mark.parametrize("content", [torch.nan, 3.0, -torch.inf])
def test_a_hidden_key_decays_nothing(backend: str, content: float, is_causal: bool, dense: bool) -> None:
    """Bit for bit, whatever its log_decay, key and value hold."""
    q = randn(2, 2, 150, 8, dtype=torch.float32, grad=True)
    k, v = (randn(2, 2, 150, 8, dtype=torch.float32) for _ in range(2))
    log_decay, mask = decays(2, 2, 150, dtype=torch.float32, most=0.1), torch.rand(2, 1, 1, 150) > 0.3
    results = []
    for fill in (0.0, content):
        padded = [torch.where(mask.mT, x, fill).requires_grad_() for x in (k, v)]
        padded.append(torch.where(mask.squeeze(-2), log_decay, fill).requires_grad_())
        with forced(dense=dense):
            o = fastmax_attention(q, *padded[:2], mask, is_causal=is_causal, log_decay=padded[2], backend=backend)
            grads = torch.autograd.grad(o.square().sum(), (q, *padded))
        assert (grads[3].masked_select(~mask.squeeze(-2)) == 0).all()
        results.append([o, *grads])
    for a, b in zip(*results, strict=True):
        assert a.isfinite().all()
        assert torch.equal(a, b)


@each_form
@pytest.mark.parametrize("order", [1, 2, 3])
@settings(max_examples=8)
@given(cuts=st.lists(st.integers(0, 33), max_size=3).map(sorted))
def test_pieces_equal_the_whole(backend: str, order: int, dense: bool, cuts: list[int]) -> None:
    """Through states, which fade as the whole does; gradients too."""
    inputs, do = [randn(2, 4, 33, 3), randn(2, 2, 33, 3), randn(2, 2, 33, 4), decays(2, 2, 33)], randn(2, 4, 33, 4)
    options: dict[str, Any] = {"is_causal": True, "order": order, "enable_gqa": True, "scale": 0.2}

    def whole(*x: Tensor) -> Tensor:
        return reference_attention(*x[:3], log_decay=x[3], **options)

    def pieces(*x: Tensor) -> Tensor:
        state, outputs = None, []
        for a, b in zip([0, *cuts], [*cuts, 33], strict=True):
            q, k, v = (y[..., a:b, :] for y in x[:3])
            o, state = fastmax_attention(
                q, k, v, log_decay=x[3][..., a:b], initial_state=state, return_state=True, backend=backend, **options
            )
            outputs.append(o)
        return torch.cat(outputs, -2)

    with forced(dense=dense, chunk=4, budget=1):
        for actual, expected in zip(with_grads(pieces, inputs, do), with_grads(whole, inputs, do), strict=True):
            torch.testing.assert_close(actual, expected)


@either_direction
def test_packed_sequences_start_anew(backend: str, is_causal: bool) -> None:
    ends = [0, 0, 5, 5, 12, 20, 20]
    inputs, do = [randn(20, 4, 3), randn(20, 2, 3), randn(20, 2, 4), decays(2, 20)], randn(20, 4, 4)
    options: dict[str, Any] = {"is_causal": is_causal, "enable_gqa": True}

    def packed(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor) -> Tensor:
        cu = torch.tensor(ends, dtype=torch.int32)
        return fastmax.fastmax_varlen_attention(q, k, v, cu, cu, log_decay=log_decay, backend=backend, **options)

    def alone(*x: Tensor) -> Tensor:
        outputs = []
        for a, b in pairwise(ends):
            q, k, v = (y[a:b].transpose(0, 1) for y in x[:3])
            outputs.append(reference_attention(q, k, v, log_decay=x[3][:, a:b], **options).transpose(0, 1))
        return torch.cat(outputs)

    for a, b in zip(with_grads(packed, inputs, do), with_grads(alone, inputs, do), strict=True):
        torch.testing.assert_close(a, b)


Q = torch.randn(2, 4, 9, 3)


def with_value(value: float) -> Tensor:
    log_decay = torch.full((2, 4, 9), -0.5)
    log_decay[1, 2, 5] = value
    log_decay[1, 3, 1] = value
    return log_decay


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"log_decay": with_value(0.25)}, ValueError, r"finite and at most 0, got 0.25 at .* = \(1, 2, 5\)"),
    ({"log_decay": with_value(torch.nan)}, ValueError, r"got nan at \(batch, head, token\) = \(1, 2, 5\)"),
    ({"log_decay": with_value(-torch.inf)}, ValueError, r"got -inf at .* = \(1, 2, 5\)"),
    ({"log_decay": with_value(0.25), "is_causal": False}, ValueError, r"got 0.25 at .* = \(1, 2, 5\)"),
    ({"log_decay": torch.zeros(2, 4, 8)}, ValueError, r"broadcast to .* = \(2, 4, 9\), got shape \(2, 4, 8\)"),
    ({"log_decay": torch.zeros(3, 1, 9)}, ValueError, r"got shape \(3, 1, 9\)"),
    ({"log_decay": torch.zeros(1, 2, 4, 9)}, ValueError, r"got shape \(1, 2, 4, 9\)"),
    ({"log_decay": -1.0}, TypeError, "log_decay must be a torch.Tensor, got float"),
    ({"log_decay": torch.zeros(9, dtype=torch.int64)}, ValueError, "floating-point tensor, got torch.int64"),
    ({"log_decay": torch.zeros(9, device="meta")}, ValueError, "log_decay must be on cpu as query is, got meta"),
    ({"query": Q[:, :, :7]}, ValueError, "self attention.*got 7 queries and 9 keys"),
    ({"is_causal": False, "return_state": True}, ValueError, "need is_causal=True"),
    ({"is_causal": False, "initial_state": torch.zeros(2, 4, 10, 4)}, ValueError, "need is_causal=True"),
]


@pytest.mark.parametrize(("change", "error", "message"), REFUSED)
def test_what_is_refused(backend: str, change: dict[str, Any], error: type[Exception], message: str) -> None:
    good: dict[str, Any] = {"query": Q, "key": Q, "value": Q, "is_causal": True, "log_decay": torch.zeros(9)}
    fastmax.fastmax_attention(**good, backend=backend)
    for grad in (False, True):
        arguments = good | change
        arguments["query"] = arguments["query"].clone().requires_grad_(grad)
        with pytest.raises(error, match=message):
            fastmax.fastmax_attention(**arguments, backend=backend)


def test_packed_sequences_of_other_lengths_are_refused() -> None:
    x, log_decay = randn(9, 2, 3), torch.zeros(2, 9)
    with pytest.raises(ValueError, match="cu_seqlens_q and cu_seqlens_k must be equal"):
        fastmax.fastmax_varlen_attention(
            x, x, x, torch.tensor([0, 4, 9]), torch.tensor([0, 3, 9]), is_causal=True, log_decay=log_decay
        )


@pytest.fixture
def _fresh_compiler() -> Any:
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # inductor's own
        yield
    torch.compiler.reset()


@pytest.mark.usefixtures("_fresh_compiler")
@either_direction
def test_compile(is_causal: bool) -> None:
    """One graph for every length."""

    def f(q: Tensor, k: Tensor, v: Tensor, gate: Tensor) -> Tensor:
        log_decay = torch.nn.functional.logsigmoid(gate)
        return fastmax.fastmax_attention(q, k, v, is_causal=is_causal, log_decay=log_decay, enable_gqa=True).sin()

    compiled = torch.compile(f, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (13, 31):
        inputs = [randn(2, 4, n, 3), randn(2, 2, n, 3), randn(2, 2, n, 5), randn(2, 2, n)]
        do = randn(2, 4, n, 5)
        for a, b in zip(with_grads(compiled, inputs, do), with_grads(f, inputs, do), strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.usefixtures("_fresh_compiler")
@either_direction
def test_export(is_causal: bool) -> None:
    class Attention(torch.nn.Module):
        def forward(self, q: Tensor, log_decay: Tensor) -> Tensor:
            return fastmax.fastmax_attention(q, q, q, is_causal=is_causal, log_decay=log_decay)

    length = torch.export.Dim("length", min=2, max=4096)
    program = torch.export.export(
        Attention(), (randn(2, 9, 3), decays(2, 9)), dynamic_shapes=[{1: length}, {1: length}]
    )
    longer = randn(2, 21, 3), decays(2, 21)
    torch.testing.assert_close(program.module()(*longer), Attention()(*longer))


@either_direction
def test_checkpointing(backend: str, is_causal: bool) -> None:
    inputs = [randn(2, 9, 3, grad=True) for _ in range(3)] + [decays(2, 9).requires_grad_()]

    def f(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor) -> Tensor:
        return fastmax.fastmax_attention(q, k, v, is_causal=is_causal, log_decay=log_decay, backend=backend)

    expected = torch.autograd.grad(f(*inputs).sum(), inputs)
    actual = torch.autograd.grad(checkpoint(f, *inputs, use_reentrant=False).sum(), inputs)
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


@either_direction
@pytest.mark.parametrize("mode", ["quadratic", "standard", "1d"])
def test_with_dropout(mode: str, is_causal: bool) -> None:
    """The same seed, the same result; another seed, another; gradients are exact for a fixed seed."""
    inputs = [randn(1, 5, 3, grad=True) for _ in range(3)] + [decays(1, 5).requires_grad_()]

    def f(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, seed: int = 0) -> Tensor:
        torch.manual_seed(seed)
        return fastmax.fastmax_attention(
            q, k, v, dropout_p=0.3, is_causal=is_causal, log_decay=log_decay, dropout_mode=mode, scale=0.3
        )

    assert torch.equal(f(*inputs), f(*inputs))
    assert not torch.equal(f(*inputs), f(*inputs, seed=1))
    assert gradcheck(f, inputs)
