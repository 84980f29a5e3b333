"""fastmax_attention against the fp64 oracle, over shapes, masks, dtypes and cuts of the work."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastmax import attention_matrix, reference_attention
from tests.support import assert_within_budget, fastmax_attention, forced, randn, with_grads

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def check_against_oracle(
    inputs: list[torch.Tensor],
    do: torch.Tensor,
    backend: str = "auto",
    *,
    mask: torch.Tensor | None = None,
    **options: Any,
) -> None:
    """Output and gradients of q, k, v (and of a tensor of scales, the fourth input) within the budget."""

    def call(f: Any, **more: Any) -> Any:
        return lambda q, k, v, *scale: f(q, k, v, mask, **options, **more, **({"scale": scale[0]} if scale else {}))

    actual = with_grads(call(fastmax_attention, backend=backend), inputs, do)
    dense = with_grads(call(reference_attention), inputs, do)
    oracle = with_grads(call(reference_attention), [x.double() for x in inputs], do)
    for a, b, c in zip(actual, oracle, dense, strict=True):
        assert_within_budget(a, b, c)


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    """Sizes, masks and options of a call; the forced cuts make tiny sequences span several chunks and tiles."""
    return {
        "batch": draw(st.integers(1, 2)),
        "key_heads": draw(st.integers(1, 3)),
        "groups": draw(st.integers(1, 3)),
        "queries": draw(st.integers(0, 40)),
        "keys": draw(st.integers(0, 40)),
        "head_dim": draw(st.integers(1, 9)),
        "value_dim": draw(st.integers(1, 9)),
        "order": draw(st.integers(1, 4)),
        "is_causal": draw(st.booleans()),
        "normalize": draw(st.booleans()),
        "masked": draw(st.booleans()),
        "scaled": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**16)),
    }


def make(problem: dict[str, Any], dtype: torch.dtype) -> tuple[list[torch.Tensor], torch.Tensor, dict[str, Any]]:
    torch.manual_seed(problem["seed"])
    batch, heads, groups = problem["batch"], problem["key_heads"], problem["groups"]
    q = randn(batch, heads * groups, problem["queries"], problem["head_dim"], dtype=dtype)
    k = randn(batch, heads, problem["keys"], problem["head_dim"], dtype=dtype)
    v = randn(batch, heads, problem["keys"], problem["value_dim"], dtype=dtype)
    scale = (torch.rand(heads * groups) / problem["head_dim"]).to(dtype)
    do = randn(*q.shape[:-1], problem["value_dim"], dtype=dtype)
    options = {name: problem[name] for name in ("order", "is_causal", "normalize")}
    options |= {
        "enable_gqa": True,
        "mask": torch.rand(batch, 1, 1, problem["keys"]) > 0.4 if problem["masked"] else None,
    }
    return [q, k, v] + [scale] * problem["scaled"], do, options


@pytest.mark.parametrize("dense", [None, True, False])
@settings(max_examples=60)
@given(problem=problems(), chunk=st.sampled_from([4, 16, 64]), tile=st.sampled_from([8, 32]))
def test_any_problem_in_fp64(backend: str, dense: bool | None, problem: dict[str, Any], chunk: int, tile: int) -> None:
    inputs, do, options = make(problem, torch.float64)
    if problem["order"] % 2 or not problem["normalize"]:
        # keep f >= 0: only then is the quotient well conditioned, so that two forms can be compared at all
        inputs[0], inputs[1] = (torch.nn.functional.normalize(x, dim=-1) for x in inputs[:2])
        options["normalize"] = False
    with forced(dense=dense, chunk=chunk, budget=1 << 8, tile=tile):
        check_against_oracle(inputs, do, backend, **options)


@pytest.mark.parametrize("dtype", DTYPES[1:])
@settings(max_examples=25)
@given(problem=problems())
def test_any_problem_in_lower_precision(backend: str, dtype: torch.dtype, problem: dict[str, Any]) -> None:
    problem |= {"order": 2 + 2 * (problem["order"] > 2), "normalize": True}
    inputs, do, options = make(problem, dtype)
    check_against_oracle(inputs, do, backend, **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("head_dim", [16, 32])
def test_long_sequences(backend: str, order: int, head_dim: int, is_causal: bool, dtype: torch.dtype) -> None:
    """Long enough for the factorized form, with lengths that are no multiple of anything."""
    inputs = [randn(1, 2, 707, d, dtype=dtype) for d in (head_dim, head_dim, head_dim - 3)]
    do = randn(1, 2, 707, head_dim - 3, dtype=dtype)
    check_against_oracle(inputs, do, backend, order=order, is_causal=is_causal)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(700, 300), (300, 700), (1, 900), (900, 1), (0, 5), (5, 0), (1, 1)])
def test_cross_attention(backend: str, queries: int, keys: int, is_causal: bool) -> None:
    q, k, v = randn(2, queries, 8), randn(2, keys, 8), randn(2, keys, 6)
    with forced(dense=False):
        check_against_oracle([q, k, v], randn(2, queries, 6), backend, is_causal=is_causal)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 3), (2, 1, 2, 3)])
def test_any_leading_dimensions(backend: str, lead: tuple[int, ...]) -> None:
    q, k, v = randn(*lead, 9, 4), randn(*lead, 9, 4), randn(*lead, 9, 5)
    check_against_oracle([q, k, v], randn(*lead, 9, 5), backend, is_causal=True)


def test_leading_dimensions_broadcast(backend: str) -> None:
    q, k, v = randn(2, 3, 9, 4), randn(3, 9, 4), randn(2, 1, 9, 5)
    check_against_oracle([q, k, v], randn(2, 3, 9, 5), backend, is_causal=True)


def test_non_contiguous_and_expanded_inputs(backend: str) -> None:
    q = randn(2, 9, 3, 4).transpose(1, 2)
    k = randn(2, 3, 4, 9).mT
    v = randn(1, 1, 9, 5).expand(2, 3, 9, 5)
    do = randn(1, 1, 1, 1).expand(2, 3, 9, 5)
    check_against_oracle([q, k, v], do, backend, is_causal=True)
    check_against_oracle([x[..., ::2, :] for x in (q, k, v)], do[..., ::2, :], backend)


def test_heads_inside_tokens_stay_there(backend: str) -> None:
    """Pass projections (B, N, H, D) as models do: the transpose back must be free."""
    q, k, v = (randn(2, 9, 3, 4).transpose(1, 2).requires_grad_() for _ in range(3))
    o = fastmax_attention(q, k, v, backend=backend)
    assert o.transpose(1, 2).is_contiguous()
    (dq,) = torch.autograd.grad(o.sum(), q)
    assert dq.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("shape", [(37,), (1, 37), (2, 1, 1, 37), (1, 4, 1, 37), (2, 4, 1, 37), (2, 1, 1, 1)])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("enable_gqa", [False, True])
def test_key_padding(backend: str, shape: tuple[int, ...], is_causal: bool, enable_gqa: bool) -> None:
    key_heads = 2 if enable_gqa else 4
    q, k, v = randn(2, 4, 37, 4), randn(2, key_heads, 37, 4), randn(2, key_heads, 37, 5)
    mask = torch.rand(shape) > 0.3
    options = {"is_causal": is_causal, "enable_gqa": enable_gqa, "mask": mask}
    check_against_oracle([q, k, v], randn(2, 4, 37, 5), backend, **options)


def test_an_expanded_mask_does_not_vary_with_the_query(backend: str) -> None:
    q, k, v = randn(2, 4, 9, 4), randn(2, 4, 7, 4), randn(2, 4, 7, 5)
    mask = torch.rand(2, 1, 1, 7) > 0.3
    o = fastmax_attention(q, k, v, mask.expand(2, 4, 9, 7), backend=backend)
    torch.testing.assert_close(o, reference_attention(q, k, v, mask))


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("is_causal", [False, True])
def test_a_query_without_a_key_gives_zeros(backend: str, is_causal: bool, dense: bool) -> None:
    q, k, v = (randn(2, 2, 90, 4, grad=True) for _ in range(3))
    mask = torch.ones(2, 1, 1, 90, dtype=torch.bool)
    mask[0] = False
    mask[1, ..., :70] = False
    with forced(dense=dense):
        o = fastmax_attention(q, k, v, mask, is_causal=is_causal, backend=backend)
        grads = torch.autograd.grad(o.sum(), (q, k, v))
    assert (o[0] == 0).all()
    assert (o[1, :, :70] == 0).all() == is_causal
    assert all(torch.isfinite(g).all() for g in grads)
    assert all((g[0] == 0).all() for g in grads)
    torch.testing.assert_close(o, reference_attention(q, k, v, mask, is_causal=is_causal))


@pytest.mark.parametrize("scale", [0.25, 0, -0.5, 3])
def test_any_finite_scale(backend: str, scale: float) -> None:
    inputs = [randn(2, 9, 4) for _ in range(3)]
    check_against_oracle(inputs, randn(2, 9, 4), backend, scale=scale)


def test_a_scalar_tensor_scales_all_heads(backend: str) -> None:
    inputs = [*(randn(2, 9, 4) for _ in range(3)), torch.tensor(0.3, dtype=torch.float64)]
    check_against_oracle(inputs, randn(2, 9, 4), backend)


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_mixed_dtypes(backend: str, low: torch.dtype) -> None:
    q, k, v = randn(2, 9, 4, dtype=torch.float32), randn(2, 9, 4, dtype=torch.float32), randn(2, 9, 4, dtype=low)
    actual = with_grads(lambda *x: fastmax_attention(*x, backend=backend), [q, k, v], randn(2, 9, 4))
    assert [x.dtype for x in actual] == [low, torch.float32, torch.float32, low]
    oracle = reference_attention(q.double(), k.double(), v.double())
    assert_within_budget(actual[0], oracle, oracle.to(low))


def test_autocast(backend: str) -> None:
    q, k, v = (randn(2, 9, 4, dtype=torch.float32, grad=True) for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        o = fastmax_attention(q, k, v, backend=backend)
        wide = fastmax_attention(q.double(), k.double(), v.double(), backend=backend)
    assert o.dtype == torch.bfloat16
    assert wide.dtype == torch.float64
    o.float().square().sum().backward()
    assert q.grad is not None
    assert q.grad.dtype == torch.float32
    assert_within_budget(o, wide, wide.bfloat16())


def test_empty_batch(backend: str) -> None:
    q, k, v = (randn(0, 3, 9, 4, grad=True) for _ in range(3))
    o = fastmax_attention(q, k, v, backend=backend)
    assert o.shape == (0, 3, 9, 4)
    assert torch.autograd.grad(o.sum(), q)[0].shape == q.shape


@pytest.mark.parametrize("return_state", [False, True])
@pytest.mark.parametrize("scale", [1.0, 0.125])
@pytest.mark.parametrize("spread", [0.05, 1e-3, 0.0])
def test_keys_that_are_alike_lose_the_digits_that_the_faq_says(
    backend: str, spread: float, scale: float, return_state: bool
) -> None:
    """Lose up to (scale D)² roundings in sums that are states, and few in others. The same call in fp64 is exact to fp32."""
    q, k, v = (randn(1, 1, 600, 64, dtype=torch.float32) for _ in range(3))
    k = k[:, :, :1] + spread * k
    exact = reference_attention(q.double(), k.double(), v.double(), scale=scale)
    found = []
    for inputs in ([q, k, v], [x.double() for x in (q, k, v)]):
        with forced(dense=False):
            o = fastmax_attention(*inputs, scale=scale, backend=backend, return_state=return_state)
        found.append((o[0] if return_state else o) - exact)
    size, rounding = exact.abs().max(), torch.finfo(torch.float32).eps
    assert found[0].abs().max() <= (2 * (scale * 64) ** 2 if return_state else 32) * rounding * size
    assert found[1].abs().max() <= rounding * size


@pytest.mark.parametrize("is_causal", [False, True])
def test_rows_of_the_matrix(is_causal: bool) -> None:
    q, k, v = randn(2, 4, 12, 4), randn(2, 2, 12, 4), randn(2, 2, 12, 5)
    mask = torch.rand(2, 1, 1, 12) > 0.3
    options: dict[str, Any] = {"is_causal": is_causal, "enable_gqa": True, "scale": torch.rand(4).double()}
    matrix = attention_matrix(q, k, mask, **options)
    torch.testing.assert_close(matrix @ v.repeat_interleave(2, 1), fastmax_attention(q, k, v, mask, **options))
    rows = attention_matrix(q, k, mask, rows=[7, 0, -1], **options)
    torch.testing.assert_close(rows, matrix[..., [7, 0, 11], :])


def test_rows_cost_only_themselves() -> None:
    q, k = randn(1_000_000, 2, dtype=torch.float32), randn(1_000_000, 2, dtype=torch.float32)
    rows = attention_matrix(q, k, rows=torch.tensor([0, 999_999]), is_causal=True)
    assert rows.shape == (2, 1_000_000)
    assert rows[0].nonzero().tolist() == [[0]]
