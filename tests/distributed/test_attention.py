"""Ranks that share a sequence compute what one process computes: outputs, states and all gradients, however it is cut."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import ProcessGroup

from fastmax import reference_attention
from fastmax.distributed import context_parallel_attention, layout
from tests.distributed.cases import Case, joined, shard, whole
from tests.distributed.pool import Pool
from tests.support import assert_within_budget, with_grads

EXACT = 1e-12


def compare(pool: Pool, case: Case) -> None:
    found, expected = joined(pool.run(case.world, shard, case)), whole(case)
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        assert found[name].shape == x.shape, name
        error = (found[name] - x).abs().max().item() if x.numel() else 0.0
        assert error <= EXACT * max(1.0, x.abs().max().item() if x.numel() else 0.0), (name, error, case)


@st.composite
def cuts(draw: st.DrawFn, most: int = 7) -> tuple[int, ...]:
    """The lengths of two to four shards; some are empty."""
    return tuple(draw(st.lists(st.integers(0, most), min_size=2, max_size=4)))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    queries, is_causal, decays = draw(cuts()), draw(st.booleans()), draw(st.booleans())
    states = is_causal or not decays
    return Case(
        queries,
        is_causal=is_causal,
        decays=decays,
        resets=decays and draw(st.booleans()),
        heads=draw(st.sampled_from([(2, 2), (4, 2), (3, 1)])),
        masked=draw(st.booleans()),
        learns_scale=draw(st.booleans()),
        initial=states and draw(st.booleans()),
        return_state=states and draw(st.booleans()),
        order=draw(st.sampled_from([1, 2, 2, 3])),
        seed=draw(st.integers(0, 9)),
    )


def packing(draw: st.DrawFn, total: int) -> tuple[int, ...]:
    inner = sorted(draw(st.lists(st.integers(0, total), max_size=4)))
    return (0, *inner, total)


@settings(max_examples=60)
@given(case=cases())
def test_one_sequence(pool: Pool, case: Case) -> None:
    compare(pool, case)


@settings(max_examples=60)
@given(case=cases(), data=st.data())
def test_packed_sequences_that_straddle_shards(pool: Pool, case: Case, data: st.DataObject) -> None:
    ends = packing(data.draw, sum(case.queries))
    compare(pool, replace(case, ends=(ends, ends)))


@settings(max_examples=25)
@given(case=cases(), data=st.data())
def test_cross_attention(pool: Pool, case: Case, data: st.DataObject) -> None:
    """Shards of queries and of keys have nothing in common."""
    keys = tuple(data.draw(st.integers(0, 7)) for _ in case.queries)
    compare(pool, replace(case, keys=keys, is_causal=False, decays=False))


@settings(max_examples=25)
@given(case=cases(), data=st.data())
def test_packed_cross_attention(pool: Pool, case: Case, data: st.DataObject) -> None:
    keys = tuple(data.draw(st.integers(0, 7)) for _ in case.queries)
    q_ends, count = packing(data.draw, sum(case.queries)), 0
    count = len(q_ends) - 2
    inner = sorted(data.draw(st.lists(st.integers(0, sum(keys)), min_size=count, max_size=count)))
    ends = q_ends, (0, *inner, sum(keys))
    compare(pool, replace(case, keys=keys, ends=ends, is_causal=False, decays=False))


@pytest.mark.parametrize(
    ("queries", "keys"),
    [((4, 4, 5), (4, 4, 2)), ((4, 4, 3), (4, 2, 0)), ((4, 2, 0), (4, 4, 3)), ((3, 0, 4), (3, 0, 6)), ((0, 3), (0, 5))],
)
def test_causal_with_more_queries_or_more_keys(pool: Pool, queries: tuple[int, ...], keys: tuple[int, ...]) -> None:
    compare(pool, Case(queries, keys, is_causal=True, return_state=True, initial=True, heads=(4, 2)))


@pytest.mark.parametrize("decays", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
def test_shards_long_enough_to_be_factorized(pool: Pool, is_causal: bool, decays: bool) -> None:
    """D = 2 and order 2 are six features: shards of forty tokens take the state through chunks."""
    case = Case((40, 64, 33), is_causal=is_causal, decays=decays, head_dim=2, value_dim=2, masked=True)
    compare(pool, case)
    compare(pool, replace(case, options={"backend": "chunked"}))
    compare(pool, replace(case, ends=((0, 30, 100, 137), (0, 30, 100, 137))))


@pytest.mark.parametrize("decays", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
def test_fp32_within_the_budget(pool: Pool, is_causal: bool, decays: bool) -> None:
    case = Case((20, 9, 0, 21), is_causal=is_causal, decays=decays, dtype=torch.float32)
    tensors, _, do, _ = case.inputs()
    found = joined(pool.run(case.world, shard, case))
    names = list(tensors)
    inputs = [tensors[name].double() for name in names]

    def reference(*x: torch.Tensor) -> torch.Tensor:
        options: dict[str, Any] = dict(zip(names[3:], x[3:], strict=True))
        return reference_attention(*x[:3], is_causal=is_causal, **options)

    oracle = with_grads(reference, inputs, do.double())
    dense = with_grads(reference, [x.float() for x in inputs], do)
    for name, exact, same in zip(["o", *(f"d {name}" for name in names)], oracle, dense, strict=True):
        assert_within_budget(found[name], exact, same)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_its_dtype(pool: Pool, dtype: torch.dtype) -> None:
    case = Case((20, 9), is_causal=True, dtype=dtype)
    found = joined(pool.run(case.world, shard, case))
    expected = whole(case)
    for name, x in found.items():
        assert x.dtype == expected[name].dtype == dtype
        assert (x - expected[name]).abs().max() <= 16 * torch.finfo(dtype).eps * max(
            1.0, expected[name].abs().max().item()
        )


def without_gradients(group: ProcessGroup, case: Case) -> torch.Tensor:
    with torch.no_grad():
        return shard_output(group, case)


def shard_output(group: ProcessGroup, case: Case, check: bool = True) -> torch.Tensor:
    """o of a case of equal shards."""
    tensors, _, _, _ = case.inputs()
    own = {
        name: x.tensor_split(case.world, -1 if name == "log_decay" else -2)[group.rank()] for name, x in tensors.items()
    }
    return case.call(own, None, group) if check else replace(case, options={"check": False}).call(own, None, group)


@pytest.mark.parametrize("is_causal", [False, True])
def test_without_gradients_and_without_the_check(pool: Pool, is_causal: bool) -> None:
    case = Case((6, 6, 6), is_causal=is_causal, decays=True)
    expected = case.call(case.inputs()[0], None)
    for f, args in ((without_gradients, ()), (shard_output, (False,))):
        torch.testing.assert_close(torch.cat(pool.run(3, f, case, *args), -2), expected, rtol=0, atol=EXACT)


def one_rank_uses_the_state(group: ProcessGroup, case: Case) -> torch.Tensor:
    """The others differentiate their output alone; the first only the state, the second only a part of its output."""
    tensors, _, _, _ = case.inputs()
    own = {name: x.tensor_split(case.world, -2)[group.rank()].clone().requires_grad_() for name, x in tensors.items()}
    o, state = case.call(own, None, group)
    loss = state.sum() if group.rank() == 0 else o[..., :1, :].sum() if group.rank() == 1 else o.sum()
    return torch.autograd.grad(loss, own["key"])[0]


@pytest.mark.parametrize("ends", [None, ((0, 4, 9), (0, 4, 9))])
@pytest.mark.parametrize("is_causal", [False, True])
def test_nobody_waits_for_a_rank_that_uses_only_a_part(pool: Pool, is_causal: bool, ends: Any) -> None:
    case = Case((3, 3, 3), ends=ends, is_causal=is_causal, return_state=True)
    found = torch.cat(pool.run(3, one_rank_uses_the_state, case), -2)
    tensors = {name: x.clone().requires_grad_() for name, x in case.inputs()[0].items()}
    o, state = case.call(tensors, None)
    loss = state.sum() + o[..., 3:4, :].sum() + o[..., 6:, :].sum()
    torch.testing.assert_close(found, torch.autograd.grad(loss, tensors["key"])[0], rtol=0, atol=EXACT)


def test_one_process_alone_is_the_plain_call(pool: Pool) -> None:
    compare(pool, Case((9,), is_causal=True, decays=True, return_state=True))
    compare(pool, Case((9,), ends=((0, 4, 9), (0, 4, 9))))


@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=5),
    cut=st.lists(st.integers(0, 25), max_size=5),
)
def test_borders(lengths: list[int], cut: list[int]) -> None:
    """Heads and tails against a list of which sequence each token is of."""
    total = sum(lengths)
    ends = (0, *sorted(min(c, total) for c in cut), total)
    owner = [i for i, (a, b) in enumerate(pairwise(ends)) for _ in range(a, b)]
    for start, stop in layout.spans(lengths):
        found = layout.packed(layout.TokenSpan(start, stop), ends)
        inside = owner[start:stop]
        left = owner[start] if 0 < start < total and owner[start - 1] == owner[start] else None
        right = owner[stop] if 0 < stop < total and owner[stop - 1] == owner[stop] else None
        assert found.head == inside.count(left)
        assert found.tail == inside.count(right)
        assert found.through == (left is not None and left == right)
        assert found.sequences == tuple(sorted(set(inside)))
        assert found.ends is not None
        assert [b - a for a, b in pairwise(found.ends)] == [inside.count(i) for i in found.sequences]


def dropped(group: ProcessGroup, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    x = torch.ones(1, 1, 64, 4, dtype=torch.float64) * torch.tensor([1.0, -1.0, 2.0, -2.0])
    v = torch.arange(64.0, dtype=torch.float64)[:, None].expand(1, 1, 64, 1) + 64 * group.rank()
    twice = []
    for _ in range(2):
        torch.manual_seed(seed)
        twice.append(context_parallel_attention(x, x, v, None, 0.5, True, mesh=group))
    return twice[0], twice[1]


def test_dropout_is_drawn_by_each_rank_and_from_the_generator(pool: Pool) -> None:
    (a, a_again), (b, b_again) = pool.run(2, dropped, 3)
    assert torch.equal(a, a_again)
    assert torch.equal(b, b_again)
    exact = torch.arange(128.0, dtype=torch.float64).cumsum(0) / torch.arange(1.0, 129.0, dtype=torch.float64)
    error = torch.cat((a, b), -2)[0, 0, :, 0] - exact  # all weights are equal without dropout
    assert 0.1 < error[32:].abs().mean() < 8
    assert not torch.allclose(error[:64], error[64:])
