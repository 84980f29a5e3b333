"""A backend's own step of decoding, against the definition in fastmax.state.decode, at every level."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fastmax import backends, fastmax_attention
from fastmax.backends import native
from fastmax.features import feature_count
from fastmax.state import decode
from tests.backends.conformance import threads
from tests.backends.interpreter import MISSING, interpreted
from tests.support import assert_within_budget, randn

CAPACITY = 6


def steppers(*, interprets: bool = True) -> list[Any]:
    """Each backend that decodes, native at all levels of this processor, Triton's in the interpreter if that is asked for."""
    found = []
    for name in backends.NAMES:
        if name == "triton":
            if interprets and not MISSING:
                found.append(pytest.param(name, None, id="triton", marks=pytest.mark.interpreted))
        elif hasattr(backends.load(name), "prepare_step"):
            levels = native.levels() if name == "native" else (None,)
            found += [pytest.param(name, level, id=f"{name}/{level}" if level else name) for level in levels]
    return found


def prepare_step_of(name: str) -> Any:
    return interpreted().prepare_step if name == "triton" else backends.load(name).prepare_step  # type: ignore[attr-defined]


def decoded(
    prepare: Any, tensors: dict[str, Any], tokens: int, dtype: torch.dtype, head_scale: Tensor, **options: Any
) -> list[Tensor]:
    """Outputs of all steps, and the recent tokens that they left."""
    q, k, v, mask, decay, total = (tensors[name] for name in ("q", "k", "v", "mask", "decay", "total"))
    batch, heads, _, head_dim = k.shape
    room = [
        torch.full((batch, heads, CAPACITY, width), torch.nan, dtype=dtype) for width in (head_dim, v.shape[-1] + 1, 1)
    ]
    recent_decay = None if decay is None else room[2].squeeze(-1)
    first = None if decay is None else decay[:, :, :1]
    step = prepare(*(x[:, :, :1] for x in (q, k, v)), total, room[0], room[1], recent_decay, None, first, **options)
    outputs = []
    for t in range(tokens):
        now = slice(t, t + 1)
        more = None if mask is None else mask[:, now], None if decay is None else decay[:, :, now]
        outputs.append(step(q[:, :, now], k[:, :, now], v[:, :, now], head_scale, *more, t, 0))
    left = [x[:, :, :tokens] for x in room[:2]] + ([] if recent_decay is None else [recent_decay[:, :, :tokens]])
    assert all(x[:, :, tokens:].isnan().all() for x in room[:2]), "no place but the next is written to"
    return [torch.cat(outputs, 2), *left]


@pytest.mark.parametrize(("name", "level"), steppers())
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("order", "dim", "value_dim", "groups", "normalize", "decays", "masked", "summed"),
    [
        (2, 64, 64, 1, "standardize", False, False, True),
        (2, 19, 37, 3, "rms", True, True, True),
        (1, 16, 33, 2, "none", True, False, True),
        (2, 8, 5, 1, "standardize", True, True, False),
        (1, 3, 2, 2, "standardize", False, True, True),
    ],
)
def test_a_step_is_its_definition(
    name: str, level: str | None, dtype: torch.dtype, order: int, dim: int, value_dim: int, groups: int, normalize: str,
    decays: bool, masked: bool, summed: bool,
) -> None:  # fmt: skip
    tokens, sums = 5, torch.float64 if dtype == torch.float64 else torch.float32
    q, k, v = (randn(2, h, tokens, n, dtype=dtype) for h, n in ((2 * groups, dim), (2, dim), (2, value_dim)))
    mask = torch.tensor([[True, False, True, True, False]]).expand(2, tokens) if masked else None
    if masked:
        k[:, :, 1] = torch.nan
    before = [randn(2, 2, 40, n) for n in (dim, dim, value_dim)]
    _, total = fastmax_attention(*before, order=order, return_state=True, backend="chunked")
    tensors = {
        "q": q, "k": k, "v": v, "mask": mask,
        "decay": -torch.rand(2, 2, tokens, dtype=sums) if decays else None, "total": total.to(sums) if summed else None,
    }  # fmt: skip
    options: dict[str, Any] = {
        "order": order,
        "scale": 1 / dim,
        "head_scale": torch.rand(2 * groups) + 0.5,
        "normalize": normalize,
    }
    wide = {n: x.double() if x is not None and x.is_floating_point() else x for n, x in tensors.items()}
    exact = decoded(
        decode.prepare_step, wide, tokens, torch.float64, **options | {"head_scale": options["head_scale"].double()}
    )
    same = decoded(decode.prepare_step, tensors, tokens, sums, **options)
    own = {} if level is None else {"level": level}
    for workers in (1,) if name == "triton" else (1, 2):  # the interpreter has one thread
        with threads(workers):
            found = decoded(prepare_step_of(name), tensors, tokens, sums, **options, **own)
        for actual, oracle, dense in zip(found, exact, same, strict=True):
            assert_within_budget(actual, oracle, dense)


@pytest.mark.parametrize(("name", "level"), steppers())
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("fold", [1, 4, 5])
@pytest.mark.parametrize(
    ("order", "dim", "value_dim", "groups", "decays"),
    [(2, 64, 64, 1, False), (1, 19, 37, 3, True), (2, 5, 3, 1, True), (2, 16, 63, 2, True)],
)
def test_the_oldest_tokens_join_the_sum(
    name: str, level: str | None, dtype: torch.dtype, fold: int, order: int, dim: int, value_dim: int, groups: int,
    decays: bool,
) -> None:  # fmt: skip
    own = {} if level is None else {"level": level}
    options: dict[str, Any] = {"order": order, "scale": 1 / dim, "normalize": "rms"}
    q, k, v = (randn(2, h, 1, n, dtype=dtype) for h, n in ((2 * groups, dim), (2, dim), (2, value_dim)))
    held = [
        randn(2, 2, feature_count(dim, order), value_dim + 1, dtype=dtype).abs(),
        randn(2, 2, 5, dim, dtype=dtype) / dim,
    ]
    held += [randn(2, 2, 5, value_dim + 1, dtype=dtype).abs(), -torch.rand(2, 2, 5, dtype=dtype)]
    fused = prepare_step_of(name)
    results = []
    for prepare, kind, more in (
        (decode.prepare_step, torch.float64, {}),
        (decode.prepare_step, dtype, {}),
        (fused, dtype, own),
    ):
        total, keys, values, faded = (x.to(kind, copy=True) for x in held)
        decay = faded[:, :, 2:3].clone() if decays else None
        tokens = [x.to(kind) for x in (q, k, v)]
        summed = torch.full((2, 2), -3.0, dtype=torch.float64) if decays else None
        step = prepare(*tokens, total, keys, values, faded if decays else None, summed, decay, **options, **more)
        o = step(*tokens, None, None, decay, 5, fold)
        left = 6 - fold
        results.append([o, total, keys[:, :, :left], values[:, :, :left], faded[:, :, : left if decays else 5]])
        results[-1] += [] if summed is None else [summed]
    for exact, same, actual in zip(*results, strict=True):
        assert_within_budget(actual, exact, same)


@pytest.mark.parametrize(("name", "level"), steppers(interprets=False))
@pytest.mark.parametrize("wrong", [0.5, torch.nan, -torch.inf])
def test_a_decay_that_is_none_is_refused_and_nothing_is_written(name: str, level: str | None, wrong: float) -> None:
    x, keys, values, decays = randn(2, 2, 1, 4), randn(2, 2, 3, 4), randn(2, 2, 3, 5), -torch.rand(2, 2, 3).double()
    before = [y.clone() for y in (keys, values, decays)]
    own = {} if level is None else {"level": level}
    step = backends.load(
        name
    ).prepare_step(  # type: ignore[attr-defined]
        x, x, x, None, keys, values, decays, None, decays[:, :, :1], order=2, scale=1.0, normalize="none", **own
    )
    decay = torch.zeros(2, 2, 3).double()[:, :, :1]
    decay[1, 0] = wrong
    with pytest.raises(ValueError, match=r"log_decay must be finite and at most 0, got .* = \(1, 0, 0\)"):
        step(x, x, x, None, None, decay, 1, 0)
    assert all(torch.equal(y, z) for y, z in zip((keys, values, decays), before, strict=True))
    step(x, x, x, None, torch.tensor([[True], [False]]), decay, 1, 0)  # a hidden key's does not matter


@pytest.mark.skipif(not native.levels(), reason=native.describe())
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 3}, "recent tokens fewer"),
        ({"count": -1}, "recent tokens fewer"),
        ({"count": 2, "fold": 3}, "recent tokens fewer"),
        ({"count": 2, "fold": -1}, "recent tokens fewer"),
        ({"order": 3}, "order must be 1 to 4"),
    ],
)
def test_the_kernel_refuses_a_step_it_cannot_do(change: dict[str, int], message: str) -> None:
    x, room, total = randn(1, 1, 1, 4), randn(1, 1, 3, 4), randn(1, 1, 15, 5)
    values = randn(1, 1, 3, 5)
    step = native.prepare_step(
        x, x, x, total, room, values, None, None, None, order=change.get("order", 2), scale=1.0, normalize="none"
    )
    with pytest.raises(ValueError, match=message):
        step(x, x, x, None, None, None, change.get("count", 0), change.get("fold", 0))
