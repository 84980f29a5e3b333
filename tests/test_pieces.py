"""A sequence run in pieces, through states or packed, equals the whole: outputs and gradients."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fastmax import reference_attention
from tests.support import fastmax_attention, fastmax_varlen_attention, forced, randn, with_grads


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("order", [1, 2, 3, 4])
@settings(max_examples=6)
@given(cuts=st.lists(st.integers(0, 33), max_size=3).map(sorted))
def test_streaming_causal(backend: str, order: int, dense: bool, cuts: list[int]) -> None:
    """Truncated backpropagation without the truncation."""
    q, k, v, do = randn(2, 4, 33, 3), randn(2, 2, 33, 3), randn(2, 2, 33, 4), randn(2, 4, 33, 4)
    mask = torch.rand(2, 1, 1, 33) > 0.2
    mask[..., 0] = True
    options: dict[str, Any] = {"is_causal": True, "order": order, "enable_gqa": True, "scale": 0.2, "backend": backend}

    def whole(*x: Tensor) -> Tensor:
        return reference_attention(*x, mask, is_causal=True, order=order, enable_gqa=True, scale=0.2)

    def pieces(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        state, outputs = None, []
        for a, b in zip([0, *cuts], [*cuts, 33], strict=True):
            at = slice(a, b)
            o, state = fastmax_attention(
                q[..., at, :],
                k[..., at, :],
                v[..., at, :],
                mask[..., at],
                initial_state=state,
                return_state=True,
                **options,
            )
            outputs.append(o)
        return torch.cat(outputs, -2)

    with forced(dense=dense, chunk=4, budget=1):
        for actual, expected in zip(with_grads(pieces, [q, k, v], do), with_grads(whole, [q, k, v], do), strict=True):
            torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("dense", [True, False])
def test_states_of_parts_add_up(backend: str, dense: bool) -> None:
    """Context parallelism: each part's state, summed, is the whole's; unmasked queries may then read it."""
    q, k, v, do = randn(2, 9, 3), randn(2, 20, 3), randn(2, 20, 4), randn(2, 9, 4)

    def parallel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        states = [
            fastmax_attention(q[:, :0], k[:, at], v[:, at], return_state=True, backend=backend)[1]
            for at in (slice(0, 7), slice(7, 20))
        ]
        return fastmax_attention(q, k[:, :0], v[:, :0], initial_state=states[0] + states[1], backend=backend)

    with forced(dense=dense):
        actual, expected = with_grads(parallel, [q, k, v], do), with_grads(reference_attention, [q, k, v], do)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("lead", [(), (2,), (2, 1, 3)])
def test_the_state_has_the_leading_dimensions_of_the_keys(backend: str, lead: tuple[int, ...]) -> None:
    q, k, v = randn(*lead, 9, 3), randn(*lead, 9, 3), randn(*lead, 9, 4)
    o, state = fastmax_attention(q, k, v, return_state=True, backend=backend)
    assert state.shape == (*lead, 10, 5)
    again = fastmax_attention(q, k[..., :0, :], v[..., :0, :], initial_state=state, backend=backend)
    torch.testing.assert_close(again, o)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_dtype_of_the_state_is_that_of_the_sums(backend: str, dtype: torch.dtype) -> None:
    x = randn(9, 3, dtype=dtype)
    _, state = fastmax_attention(x, x, x, return_state=True, backend=backend)
    assert state.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert state[0, -1] == 9  # the constant feature counts the keys


def test_without_keys_the_state_stays_as_it_was(backend: str) -> None:
    q, state = randn(2, 5, 3), randn(2, 10, 5)
    _, out = fastmax_attention(
        q, q[:, :0], randn(2, 0, 4), is_causal=True, initial_state=state, return_state=True, backend=backend
    )
    torch.testing.assert_close(out, state)
    assert out.data_ptr() != state.data_ptr()


@pytest.mark.parametrize("is_causal", [False, True])
@settings(max_examples=20)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=4),
    dtype=st.sampled_from(["int32", "int64"]),
)
def test_packed_sequences_are_alone(backend: str, is_causal: bool, lengths: list[tuple[int, int]], dtype: str) -> None:
    ends = torch.tensor([(0, 0), *lengths]).cumsum(0).to(getattr(torch, dtype))
    total_q, total_k = ends[-1].tolist()
    q, k, v = randn(total_q, 4, 3), randn(total_k, 2, 3), randn(total_k, 2, 5)
    do, state = randn(total_q, 4, 5), randn(len(lengths), 2, 10, 6)
    mask = torch.rand(total_k) > 0.2
    options: dict[str, Any] = {"is_causal": is_causal, "enable_gqa": True, "return_state": True, "backend": backend}

    def packed(*x: Tensor) -> Tensor:
        o, out = fastmax_varlen_attention(*x[:3], ends[:, 0], ends[:, 1], mask, initial_state=x[3], **options)
        return torch.cat([o.flatten(), out.flatten()])

    def one_by_one(q: Tensor, k: Tensor, v: Tensor, state: Tensor) -> Tensor:
        outputs, states = [], []
        for i in range(len(lengths)):
            at_q, at_k = slice(*ends[i : i + 2, 0].tolist()), slice(*ends[i : i + 2, 1].tolist())
            o, out = fastmax_attention(
                q[at_q].transpose(0, 1),
                k[at_k].transpose(0, 1),
                v[at_k].transpose(0, 1),
                mask[at_k],
                initial_state=state[i],
                **options,
            )
            outputs.append(o.transpose(0, 1).flatten())
            states.append(out.flatten())
        return torch.cat([*outputs, *states, q.new_zeros(0)])

    inputs, grad = [q, k, v, state], torch.cat([do.flatten(), randn(state.numel())])
    for a, b in zip(with_grads(packed, inputs, grad), with_grads(one_by_one, inputs, grad), strict=True):
        torch.testing.assert_close(a, b)


def test_no_sequence_at_all(backend: str) -> None:
    ends = torch.zeros(1, dtype=torch.int32)
    q, k, v = randn(0, 2, 3), randn(0, 2, 3), randn(0, 2, 5)
    o, state = fastmax_varlen_attention(q, k, v, ends, ends, return_state=True, backend=backend)
    assert o.shape == (0, 2, 5)
    assert state.shape == (0, 2, 10, 6)


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_gradient_of_a_state_that_nobody_reads_is_zero(backend: str, is_causal: bool) -> None:
    nothing, state = randn(2, 0, 3), randn(2, 10, 4, grad=True)
    o = fastmax_attention(nothing, nothing, nothing, is_causal=is_causal, initial_state=state, backend=backend)
    assert torch.equal(torch.autograd.grad(o.sum(), state)[0], torch.zeros_like(state))
