"""The native kernel where keys have faded: forms by the reach of each head, and keys that are left out."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fastmax import fastmax_attention, reference_attention
from fastmax.backends import native
from fastmax.decay import STRONGEST
from fastmax.plan import Plan
from tests import support
from tests.backends.conformance import make, threads
from tests.support import assert_within_budget, forced, randn, with_grads

pytestmark = pytest.mark.skipif(not native.levels(), reason=native.describe())

DIRECTIONS = pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "both-ways"])
TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def reaching(reaches: list[float], tokens: int, dtype: torch.dtype) -> Tensor:
    """Decays of one head for each reach, -1 / reach on average."""
    return -2 * torch.rand(1, len(reaches), tokens, dtype=dtype) / torch.tensor(reaches, dtype=dtype)[:, None]


def check(inputs: list[Tensor], do: Tensor, **options: object) -> None:
    """Outputs and gradients against fp64, by the error that the definition makes in the same precision."""

    def attend(f: Any) -> Any:
        return lambda q, k, v, log_decay: f(q, k, v, log_decay=log_decay, **options)

    found = with_grads(attend(support.fastmax_attention), inputs, do)
    exact = with_grads(attend(reference_attention), [x.double() for x in inputs], do.double())
    plain = with_grads(attend(reference_attention), inputs, do)
    for one in zip(found, exact, plain, strict=True):
        assert_within_budget(*one)


@TYPES
@DIRECTIONS
@pytest.mark.parametrize("order", [1, 2])
def test_each_head_has_the_form_of_its_reach(order: int, is_causal: bool, dtype: torch.dtype) -> None:
    """Heads of 4 channels are dense up to a reach of a few tokens and factorized behind it: both forms in one call."""
    reaches = [1.0, 3.0, 20.0, 300.0, 4096.0]
    inputs = [randn(1, len(reaches), 700, 4, dtype=dtype) for _ in range(3)]
    check(
        [*inputs, reaching(reaches, 700, dtype)],
        randn(1, len(reaches), 700, 4, dtype=dtype),
        order=order,
        is_causal=is_causal,
    )


@TYPES
@DIRECTIONS
@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("reach", [0.02, 0.2, 2.0, 20.0, 1000.0])
def test_decays_of_every_strength(reach: float, dense: bool, is_causal: bool, dtype: torch.dtype) -> None:
    inputs = [randn(1, 4, 450, 16, dtype=dtype), *(randn(1, 2, 450, d, dtype=dtype) for d in (16, 9))]
    log_decay = reaching([reach, 2 * reach], 450, dtype)
    with forced(dense=dense):
        check([*inputs, log_decay], randn(1, 4, 450, 9, dtype=dtype), is_causal=is_causal, enable_gqa=True)


@DIRECTIONS
def test_a_hidden_token_sees_keys_that_others_do_not(is_causal: bool) -> None:
    """Its own key does not count, so the weights of keys far away are all that there is."""
    n, hidden = 300, torch.zeros(300, dtype=torch.bool)
    hidden[100:150] = True
    q, k, v = (randn(1, 1, n, 8, dtype=torch.float32) for _ in range(3))
    log_decay = torch.where(hidden, 0, torch.full((1, 1, n), -1.2))
    log_decay[:, :, 149] = -60.0  # not counted, because the token is hidden
    log_decay[:, :, 150] = -60.0
    mask = (~hidden)[None, None, None]
    o = fastmax_attention(q, k, v, mask, is_causal=is_causal, log_decay=log_decay)
    exact = reference_attention(
        q.double(), k.double(), v.double(), mask, is_causal=is_causal, log_decay=log_decay.double()
    )
    torch.testing.assert_close(o.double(), exact, rtol=2e-5, atol=1e-5)
    assert exact[:, :, 100:150].abs().amax(-1).min() > 0.1


@DIRECTIONS
@pytest.mark.parametrize("far", [1e10, 1e30])
def test_a_huge_value_is_seen_from_afar(far: float, is_causal: bool) -> None:
    q, k, v = (randn(1, 1, 200, 8, dtype=torch.float32) for _ in range(3))
    v[:, :, 20] *= far
    log_decay = torch.full((1, 1, 200), -1.0)
    with forced(dense=True):
        o = support.fastmax_attention(q, k, v, is_causal=is_causal, log_decay=log_decay)
    exact = reference_attention(q.double(), k.double(), v.double(), is_causal=is_causal, log_decay=log_decay.double())
    seen = exact[:, :, 20:100].norm(dim=-1)  # from here on exp(-80) and less
    assert ((o.double() - exact)[:, :, 20:100].norm(dim=-1) <= 1e-4 * seen).all()


@DIRECTIONS
def test_a_gradient_of_one_output_reaches_back(is_causal: bool) -> None:
    """Give most outputs no gradient: then values far away have only small gradients."""
    q, k, v = (randn(1, 1, 200, 8, dtype=torch.float32) for _ in range(3))
    do = torch.zeros(1, 1, 200, 8)
    do[:, :, -1] = 1
    log_decay = torch.full((1, 1, 200), -0.7)
    with forced(dense=True):
        found = with_grads(
            lambda *x: support.fastmax_attention(*x, is_causal=is_causal, log_decay=log_decay), [q, k, v], do
        )
    exact = with_grads(
        lambda *x: reference_attention(*x, is_causal=is_causal, log_decay=log_decay.double()),
        [q.double(), k.double(), v.double()],
        do.double(),
    )
    a, b = found[3][:, :, 100:].double(), exact[3][:, :, 100:]  # exp(-70) and more
    assert ((a - b).norm(dim=-1) <= 1e-4 * b.norm(dim=-1)).all()


@pytest.mark.parametrize("workers", [1, 2, 3])
@DIRECTIONS
def test_same_bits_for_same_inputs(is_causal: bool, workers: int) -> None:
    reaches = [1.0, 5.0, 30.0, 4096.0]
    inputs = [
        *(randn(2, 4, 500, 4, dtype=torch.float32) for _ in range(3)),
        reaching(reaches, 500, torch.float32).expand(2, -1, -1),
    ]
    do = randn(2, 4, 500, 4, dtype=torch.float32)
    before = torch.get_num_threads()
    torch.set_num_threads(workers)
    try:
        once, again = (
            with_grads(lambda *x: fastmax_attention(*x[:3], is_causal=is_causal, log_decay=x[3]), inputs, do)
            for _ in range(2)
        )
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


def test_a_state_fades_out() -> None:
    """A state from before a strong decay leaves nothing, and is not read; nor are keys before one added to a state."""
    parts = [[randn(1, 2, n, 8, dtype=torch.float32) for _ in range(3)] for n in (100, 90)]
    decays = [reaching([2.0, 50.0], n, torch.float32) for n in (100, 90)]
    decays[1][:, :, [0, 40]] = 3 * STRONGEST[torch.float32]
    _, state = fastmax_attention(*parts[0], is_causal=True, log_decay=decays[0], return_state=True)
    o, last = fastmax_attention(*parts[1], is_causal=True, log_decay=decays[1], initial_state=state, return_state=True)
    alone, alone_last = fastmax_attention(*parts[1], is_causal=True, log_decay=decays[1], return_state=True)
    torch.testing.assert_close(o, alone)
    torch.testing.assert_close(last, alone_last)


def test_packed_sequences_fade_both_ways() -> None:
    lengths = [0, 1, 200, 33, 0, 350]
    ends = torch.tensor(lengths).cumsum(0)
    cu_seqlens = torch.cat([torch.zeros(1, dtype=torch.int64), ends])
    q, k, v = (randn(int(ends[-1]), 2, 4, dtype=torch.float32) for _ in range(3))
    log_decay = reaching([2.0, 500.0], int(ends[-1]), torch.float32)[0]
    o = support.fastmax_varlen_attention(q, k, v, cu_seqlens, cu_seqlens, log_decay=log_decay)
    for start, end in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
        alone = [x[start:end].transpose(0, 1).double() for x in (q, k, v)]
        expected = reference_attention(*alone, log_decay=log_decay[:, start:end].double())
        torch.testing.assert_close(o[start:end].transpose(0, 1).double(), expected, rtol=1e-5, atol=1e-5)


def test_the_form_by_reach_needs_decays() -> None:
    q = randn(1, 1, 8, 4, dtype=torch.float32)
    call = make(q, q, q)
    with pytest.raises(ValueError, match=r"3 \(by reach\)"):
        native.forward(call, Plan(form="by_reach"))


@DIRECTIONS
def test_no_tokens(is_causal: bool) -> None:
    inputs = [*(randn(1, 2, 0, 4, dtype=torch.float32) for _ in range(3)), torch.zeros(1, 2, 0)]
    check(inputs, randn(1, 2, 0, 4, dtype=torch.float32), is_causal=is_causal)


@DIRECTIONS
@pytest.mark.parametrize("workers", [1, 3])
def test_fp32_sums_of_keys_that_are_alike(workers: int, is_causal: bool) -> None:
    """Sums are about the mean of some keys, as without decays; a head that several threads share has one mean."""
    q, k, v, do = (torch.randn(1, 1, 700, 32) for _ in range(4))
    k = torch.randn(1, 1, 1, 32) + 1e-3 * k
    with forced(dense=False), threads(workers):
        check([q, k, v, reaching([100.0], 700, torch.float32)], do, scale=1.0, is_causal=is_causal)
