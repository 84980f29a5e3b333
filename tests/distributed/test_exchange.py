"""The exchange between ranks: the scan and its adjoint, and refusals that reach every rank."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from fastmax.distributed import context_parallel_attention, context_parallel_varlen_attention
from fastmax.distributed.agree import Statement, disagreement
from fastmax.distributed.scan import Carry, gathers, rounds
from tests.distributed.cases import Case, shard
from tests.distributed.pool import Pool
from tests.support import randn

SHAPE = (2, 3, 4, 5)


def elements(world: int, decays: bool, resets: bool) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return for all ranks states, decays, and the gradients of what arrives."""
    torch.manual_seed(1)
    states, grads, decay = randn(world, *SHAPE), randn(world, *SHAPE), -randn(world, *SHAPE[:2]).abs()
    if resets:
        decay[1] = -torch.inf
    return states, decay if decays else None, grads


def scanned(group: ProcessGroup, reverse: bool, decays: bool, resets: bool, gather: bool | None) -> tuple[Any, ...]:
    states, decay, grads = elements(group.size(), decays, resets)
    own = states[group.rank()].clone().requires_grad_()
    a = None if decay is None else decay[group.rank()].clone().requires_grad_()
    carry = Carry(group, reverse, gather=gather)
    arrived = carry.receive(carry.send(own, a))
    found = torch.autograd.grad(arrived, [own] if a is None else [own, a], grads[group.rank()])
    return arrived.detach(), *found


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("gather", [True, False])
@pytest.mark.parametrize(("decays", "resets"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("reverse", [False, True])
def test_both_scans_are_the_recurrence(
    pool: Pool, world: int, gather: bool, decays: bool, resets: bool, reverse: bool
) -> None:
    states, decay, grads = elements(world, decays, resets)
    states.requires_grad_()
    if decay is not None:
        decay.requires_grad_()
    order = range(world - 1, -1, -1) if reverse else range(world)
    total, arrived = torch.zeros(SHAPE, dtype=torch.float64), {}
    for rank in order:
        arrived[rank] = total
        total = (total if decay is None else total * decay[rank].exp()[..., None, None]) + states[rank]
    expected = torch.stack([arrived[rank] for rank in range(world)])
    wanted = torch.autograd.grad(expected, [states] if decay is None else [states, decay], grads)
    found = pool.run(world, scanned, reverse, decays, resets, gather)
    for rank in range(world):
        for actual, x in zip(found[rank], (expected.detach(), *wanted), strict=True):
            torch.testing.assert_close(actual, x[rank], rtol=0, atol=1e-12)


def test_the_scan_that_receives_less_is_taken() -> None:
    assert [rounds(world) for world in (2, 3, 4, 5, 6, 9, 10, 1024)] == [1, 2, 3, 3, 4, 4, 5, 11]
    megabytes = 1 << 24
    assert [gathers(world, megabytes) for world in (2, 3, 4, 5, 8, 1024)] == [True, True, True, False, False, False]
    assert gathers(64, 1024), "small ones in one round"


def twice(group: ProcessGroup, case: Case) -> bool:
    """Check that two runs of a case give the same bits."""
    first, second = shard(group, case), shard(group, case)
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("is_causal", [False, True])
def test_equal_inputs_equal_bits(pool: Pool, is_causal: bool) -> None:
    case = Case((20, 9, 0, 21), is_causal=is_causal, decays=True, dtype=torch.float32)
    assert all(pool.run(4, twice, case))


# ---- refusals


def refused(group: ProcessGroup, function: Any) -> str:
    """Return the error message that a rank gets."""
    try:
        function(group)
    except (ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def attend(group: ProcessGroup, *, odd: dict[str, Any], shape: tuple[int, ...] = (2, 4, 6, 3)) -> None:
    """The last rank is called with other arguments."""
    other = odd if group.rank() == group.size() - 1 else {}
    x = torch.ones(other.get("shape", shape), dtype=other.get("dtype", torch.float64))
    x.requires_grad_(other.get("grad", False))
    rest = {name: value for name, value in other.items() if name not in ("shape", "dtype", "grad")}
    context_parallel_attention(x, x, x, mesh=group, **rest)


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({"order": 1}, "order is 2 on ranks 0, 1, 1 on rank 2"),
        ({"is_causal": True}, "is_causal is False on ranks 0, 1, True on rank 2"),
        ({"shape": (2, 2, 6, 3)}, "heads is (4, 4) on ranks 0, 1, (2, 2) on rank 2"),
        ({"shape": (1, 4, 6, 3)}, "batch is (2,) on ranks 0, 1, (1,) on rank 2"),
        ({"shape": (2, 4, 6, 2)}, "head dimensions is (3, 3) on ranks 0, 1, (2, 2) on rank 2"),
        ({"dtype": torch.float32}, "dtypes is"),
        ({"grad": True}, "tensors with gradients is [] on ranks 0, 1, ['query', 'key', 'value'] on rank 2"),
        ({"return_state": True}, "return_state is"),
        ({"order": 7}, "refused on rank 2: order must be from 1 to 4, got 7"),
        ({"scale": "much"}, "refused on rank 2: scale must be a number"),
        (
            {"log_decay": torch.ones(4, 6, dtype=torch.float64)},
            "refused on rank 2: log_decay must be finite and at most 0",
        ),
        ({"backend": "fast"}, "refused on rank 2: backend must be one of"),
    ],
)
def test_all_refuse_what_one_does_differently(pool: Pool, odd: dict[str, Any], words: str) -> None:
    told = pool.run(3, refused, partial(attend, odd=odd))
    assert told[0] == told[1] == told[2]
    assert told[0].startswith("ValueError: ")
    assert words in told[0]


def test_what_all_do_wrong_is_said_once(pool: Pool) -> None:
    told = pool.run(2, refused, partial(attend, odd={}, shape=(2, 4, 6, 0)))
    assert told[0] == told[1] == "ValueError: query must have at least one channel, got shape (2, 4, 6, 0)"


def misaligned(group: ProcessGroup) -> None:
    """Causal, and keys of the first two ranks are on the other one."""
    q, k = torch.ones(2, (6, 4, 5)[group.rank()], 3), torch.ones(2, (4, 6, 5)[group.rank()], 3)
    context_parallel_attention(q, k, k, is_causal=True, mesh=group)


def mask_per_query_head(group: ProcessGroup) -> None:
    q, k, mask = torch.ones(4, 6, 3), torch.ones(2, 6, 3), torch.ones(4, 1, 6, dtype=torch.bool)
    context_parallel_attention(q, k, k, mask, enable_gqa=True, mesh=group)


def wrong_ends(group: ProcessGroup, ends: tuple[int, ...], other: tuple[int, ...], is_causal: bool) -> None:
    x = torch.ones(6, 2, 3)
    cu = [torch.tensor(e) for e in (ends, other)]
    context_parallel_varlen_attention(x, x, x, *cu, is_causal=is_causal, mesh=group)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (misaligned, "rank 0 has the queries 0 to 6 and the keys 0 to 4"),
        (mask_per_query_head, "attn_mask must have a head dimension of 1"),
        (partial(wrong_ends, ends=(0, 5, 17), other=(0, 5, 17), is_causal=True), "the total of 18 tokens"),
        (partial(wrong_ends, ends=(0, 5, 18), other=(0, 6, 18), is_causal=True), "must be of self attention"),
        (partial(wrong_ends, ends=(0, 5, 18), other=(0, 18), is_causal=False), "the same number of sequences"),
    ],
)
def test_what_only_all_ranks_together_can_see(pool: Pool, function: Any, words: str) -> None:
    told = pool.run(3, refused, function)
    assert len(set(told)) == 1
    assert words in told[0]


def wrong_mesh(group: ProcessGroup, kind: str) -> None:
    x = torch.ones(2, 6, 3)
    mesh: Any = {
        "two": lambda: init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp")),
        "not in it": lambda: DeviceMesh("cpu", [1, 2]),
        "no group": lambda: distributed.new_group([1, 2]),
        "number": lambda: 3,
    }[kind]()
    if kind in ("not in it", "no group") and group.rank() in (1, 2):
        return
    context_parallel_attention(x, x, x, mesh=mesh)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("two", "ValueError: mesh must have one dimension, got 2 of sizes (2, 2); pick the dimension"),
        ("not in it", "ValueError: this process, rank 0 of all, is not in the mesh"),
        ("no group", "ValueError: this process, rank 0 of all, is not in the group"),
        ("number", "TypeError: mesh must be a DeviceMesh or a ProcessGroup, got int"),
    ],
)
def test_a_wrong_mesh(pool: Pool, kind: str, words: str) -> None:
    told = pool.run(4, refused, partial(wrong_mesh, kind=kind))
    assert told[0].startswith(words)
    assert told[3].startswith(words.replace("rank 0", "rank 3"))


def test_without_the_check_a_refusal_is_of_one_rank(pool: Pool) -> None:
    x = torch.ones(2, 6, 3)
    with pytest.raises(ValueError, match="order must be from 1 to 4, got 9"):
        context_parallel_attention(x, x, x, order=9, check=False, mesh=pool.groups[2])


def test_many_ranks_are_listed_in_short() -> None:
    said = [Statement({"order": rank // 10}, None, ()) for rank in range(20)]
    text = disagreement(said)
    assert "order is 0 on ranks 0, 1, 2, 3, 4, 5, 6, 7, ..., 1 on ranks 10, 11, 12, 13, 14, 15, 16, 17, ..." in text
