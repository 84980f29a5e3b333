"""torch.func: grad, vmap, jacrev and their compositions, without a slow fallback; what has no derivative is refused."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, jacrev, jvp, vmap

from fastmax import fastmax_attention, fastmax_varlen_attention, reference_attention
from tests.support import randn

NAMES = ("query", "key", "value", "scale", "log_decay", "initial_state")


def arguments() -> dict[str, Any]:
    state = (randn(2, 10, 4) * 0.1).index_fill(1, torch.tensor(0), 5.0)
    scale = torch.rand(2, dtype=torch.float64)
    return {"query": randn(2, 5, 3), "key": randn(2, 5, 3), "value": randn(2, 5, 3), "scale": scale,
            "log_decay": -torch.rand(2, 5).double(), "initial_state": state}  # fmt: skip


def _named(names: list[str], values: tuple[Tensor, ...]) -> dict[str, Any]:
    return dict(zip(names, values, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_grad_and_jacrev(backend: str, name: str) -> None:
    """Compare the gradients of every input with autograd."""
    given = arguments()

    def f(x: Tensor) -> Tensor:
        o, state = fastmax_attention(**(given | {name: x}), is_causal=True, return_state=True, backend=backend)
        return torch.cat([o.flatten(), state.flatten()[:7]])

    x = given[name].clone().requires_grad_()
    expected = torch.autograd.functional.jacobian(f, x)
    torch.testing.assert_close(jacrev(f)(given[name]), expected)
    torch.testing.assert_close(grad(lambda x: f(x).sum())(given[name]), expected.sum(0))


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("batched", [("query",), ("key", "value"), ("log_decay",), ("scale",), NAMES[:5]], ids=str)
def test_vmap(backend: str, batched: tuple[str, ...], is_causal: bool) -> None:
    """In any dimension, of any of the inputs: as one call after the other. Warnings are errors here."""
    given = [arguments() for _ in range(3)]
    names = [*batched, *(name for name in NAMES[:5] if name not in batched)]
    dims = tuple(0 if name in batched else None for name in names)

    def f(*x: Tensor) -> Tensor:
        return fastmax_attention(**_named(names, x), is_causal=is_causal, backend=backend)

    stacked = [torch.stack([g[name] for g in given]) if name in batched else given[0][name] for name in names]
    one_by_one = [[g[name] if name in batched else given[0][name] for name in names] for g in given]
    expected = torch.stack([f(*x) for x in one_by_one])
    torch.testing.assert_close(vmap(f, in_dims=dims)(*stacked), expected)
    last = [x.movedim(0, -1) if dim == 0 else x for x, dim in zip(stacked, dims, strict=True)]
    torch.testing.assert_close(vmap(f, tuple(-1 if dim == 0 else None for dim in dims))(*last), expected)

    def loss(*x: Tensor) -> Tensor:
        return f(*x).square().sum()

    every = tuple(range(len(names)))
    per_sample = vmap(grad(loss, argnums=every), in_dims=dims)(*stacked)
    for position, found in enumerate(per_sample):
        singles = torch.stack([grad(loss, argnums=position)(*x) for x in one_by_one])
        torch.testing.assert_close(found, singles)


def test_vmap_of_packed_sequences_masks_and_states(backend: str) -> None:
    x, ends = randn(3, 9, 2, 3), torch.tensor([0, 4, 9])
    mask = torch.rand(3, 9) > 0.2

    def f(x: Tensor, mask: Tensor) -> Any:
        return fastmax_varlen_attention(x, x, x, ends, ends, mask, is_causal=True, return_state=True, backend=backend)

    expected = [f(*pair) for pair in zip(x, mask, strict=True)]
    for i, found in enumerate(vmap(f)(x, mask)):
        torch.testing.assert_close(found, torch.stack([pair[i] for pair in expected]))


def test_vmap_of_vmap(backend: str) -> None:
    q, k, v = randn(2, 3, 2, 5, 4), randn(2, 2, 5, 4), randn(3, 2, 5, 4)

    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return fastmax_attention(q, k, v, is_causal=True, backend=backend)

    found = vmap(vmap(f, in_dims=(0, None, 0)), in_dims=(0, 0, None))(q, k, v)
    torch.testing.assert_close(found, f(q, k[:, None].expand(2, 3, 2, 5, 4), v.expand(2, 3, 2, 5, 4)))


def test_vmap_of_dropout() -> None:
    """Each of them as a call of its own; the masks may be the same or differ, as torch's randomness says."""
    q = randn(3, 2, 9, 4)
    f = vmap(lambda x: fastmax_attention(x, x, x, dropout_p=0.5), randomness="different")
    assert f(q).shape == q.shape
    same = vmap(lambda x: fastmax_attention(x, x, x, dropout_p=0.5), randomness="same")(q[:1].expand(3, -1, -1, -1))
    assert torch.equal(same[0], same[1])


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # inside of torch's make_dual
def test_forward_mode_is_refused(backend: str) -> None:
    q, k, v = randn(2, 5, 3), randn(2, 5, 3), randn(2, 5, 3)

    def f(x: Tensor) -> Tensor:
        return fastmax_attention(x, k, v, backend=backend)

    with pytest.raises(NotImplementedError, match="has no forward-mode derivative; fastmax"):
        jvp(f, (q,), (torch.ones_like(q),))
    jvp(lambda x: reference_attention(x, k, v), (q,), (torch.ones_like(q),))


@pytest.mark.parametrize("more", [{}, {"scale": torch.ones(2, dtype=torch.float64)}], ids=["prepared", "eager"])
def test_second_derivatives_are_refused(backend: str, more: dict[str, Any]) -> None:
    """On the eager path, prepared or not, on the op's, and in torch.func."""
    q, k, v = randn(2, 5, 3, grad=True), randn(2, 5, 3), randn(2, 5, 3)
    message = "no second derivative.*fastmax.reference_attention supports it"

    def f(x: Tensor) -> Tensor:
        return fastmax_attention(x, k, v, backend=backend, **more).square().sum()

    for _ in range(2):
        (dq,) = torch.autograd.grad(f(q), q, create_graph=True)
        with pytest.raises(RuntimeError, match=message):
            dq.sum().backward()
    with torch.overrides.BaseTorchFunctionMode():  # whoever watches gets the op
        (dq,) = torch.autograd.grad(f(q), q, create_graph=True)
    with pytest.raises(RuntimeError, match=message):
        dq.sum().backward()
    with pytest.raises(RuntimeError, match=message):
        grad(lambda x: grad(f)(x).sum())(q.detach())
