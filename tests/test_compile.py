"""The op under PyTorch's own machinery: opcheck, compile, export, checkpointing, inference mode, the meta device."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fastmax import fastmax_attention, fastmax_varlen_attention, ops
from fastmax.call import Call, Options
from tests import support
from tests.support import forced, randn


def problem(*, is_causal: bool = True, return_state: bool = True, **tensors: Any) -> Call:
    base: dict[str, Any] = {
        "q": randn(1, 4, 9, 3, grad=True),
        "k": randn(1, 2, 9, 3, grad=True),
        "v": randn(1, 2, 9, 5, grad=True),
        "options": Options(is_causal=is_causal, scale=0.5, return_state=return_state, out_dtype=torch.float64),
    }
    return Call(**(base | tensors))


PROBLEMS: dict[str, Callable[[], Call]] = {
    "plain": lambda: problem(return_state=False),
    "everything": lambda: problem(
        head_scale=torch.rand(4).double().requires_grad_(),
        log_decay=(-torch.rand(1, 2, 9)).double().requires_grad_(),
        key_mask=torch.rand(1, 1, 9) > 0.3,
        state_in=randn(1, 2, 10, 6, grad=True),
    ),
    "packed": lambda: problem(
        cu_seqlens_q=torch.tensor([0, 4, 9]),
        cu_seqlens_k=torch.tensor([0, 3, 9]),
        state_in=randn(2, 2, 10, 6, grad=True),
    ),
    "heads inside": lambda: problem(q=randn(1, 9, 4, 3).transpose(1, 2).requires_grad_(), is_causal=False),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_opcheck(backend: str, name: str) -> None:
    p = PROBLEMS[name]()
    p.options = p.options._replace(backend=backend)
    torch.library.opcheck(ops.forward, p.flatten())
    with torch.no_grad():
        o, g, state = ops.forward(*p.flatten())
    grads = [torch.randn_like(o), torch.randn_like(g), torch.randn_like(state) if p.options.return_state else None]
    detached = [x.detach() if isinstance(x, Tensor) else x for x in p.flatten()]
    torch.library.opcheck(ops.backward, (o, g, state, *grads, *detached))


@pytest.fixture
def _fresh_compiler() -> Any:
    torch.compiler.reset()
    with warnings.catch_warnings():
        # inductor itself, on import, uses what Python is about to deprecate
        warnings.simplefilter("ignore", DeprecationWarning)
        yield
    torch.compiler.reset()


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compile_with_a_dynamic_length(backend: str, compiler: str) -> None:
    """One graph for every length, forward and backward."""

    def f(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: Tensor) -> Tensor:
        o, state = fastmax_attention(
            q * 2, k, v, mask, is_causal=True, scale=scale, enable_gqa=True, return_state=True, backend=backend
        )
        return o.sin().sum() + state.cos().sum()

    graphs: list[Any] = []
    sizes: list[int] = []

    def counted(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return torch._dynamo.lookup_backend(compiler)(graph, inputs)

    compiled = torch.compile(f, fullgraph=True, dynamic=True, backend=counted)
    for length in (13, 31, 50):
        q, k, v = (
            randn(2, 4, length, 3, grad=True),
            randn(2, 2, length, 3, grad=True),
            randn(2, 2, length, 5, grad=True),
        )
        mask, scale = torch.rand(2, 1, 1, length) > 0.3, torch.rand(4).double().requires_grad_()
        actual, expected = compiled(q, k, v, mask, scale), f(q, k, v, mask, scale)
        torch.testing.assert_close(actual, expected)
        leaves = (q, k, v, scale)
        for a, b in zip(torch.autograd.grad(actual, leaves), torch.autograd.grad(expected, leaves), strict=True):
            torch.testing.assert_close(a, b)
        sizes.append(len(graphs))
    assert sizes[0] == sizes[-1], "a new length was compiled anew"


@pytest.mark.usefixtures("_fresh_compiler")
def test_compile_packed_sequences(backend: str) -> None:
    ends = torch.tensor([0, 4, 9])
    q = randn(9, 2, 3, grad=True)
    compiled = torch.compile(fastmax_varlen_attention, fullgraph=True, backend="aot_eager")
    actual = compiled(q, q, q, ends, ends, is_causal=True, backend=backend)
    expected = fastmax_varlen_attention(q, q, q, ends, ends, is_causal=True, backend=backend)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(torch.autograd.grad(actual.sum(), q), torch.autograd.grad(expected.sum(), q))


@pytest.mark.usefixtures("_fresh_compiler")
def test_a_bad_call_under_compile_says_what_is_wrong() -> None:
    compiled = torch.compile(fastmax_attention, fullgraph=True, backend="aot_eager")
    q = randn(9, 3)
    with pytest.raises(Exception, match="order must be from 1 to 4, got 7"):
        compiled(q, q, q, order=7)


@pytest.mark.usefixtures("_fresh_compiler")
def test_export(backend: str) -> None:
    class Attention(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            o: Tensor = fastmax_attention(q, k, v, is_causal=True, backend=backend)
            return o

    length = torch.export.Dim("length", min=2, max=4096)
    inputs = tuple(randn(2, 9, 3) for _ in range(3))
    program = torch.export.export(Attention(), inputs, dynamic_shapes=[{1: length}] * 3)
    longer = [randn(2, 21, 3) for _ in range(3)]
    torch.testing.assert_close(program.module()(*longer), Attention()(*longer))


def test_gradient_checkpointing(backend: str) -> None:
    q, k, v = (randn(2, 9, 3, grad=True) for _ in range(3))

    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        o: Tensor = fastmax_attention(q.sin(), k, v, is_causal=True, backend=backend)
        return o

    expected = torch.autograd.grad(f(q, k, v).sum(), (q, k, v))
    actual = torch.autograd.grad(checkpoint(f, q, k, v, use_reentrant=False).sum(), (q, k, v))
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


def test_inference_mode(backend: str) -> None:
    q, k, v = (randn(2, 9, 3) for _ in range(3))
    with torch.inference_mode():
        o = fastmax_attention(q, k, v, backend=backend)
    assert o.is_inference()
    torch.testing.assert_close(o.clone(), fastmax_attention(q, k, v, backend=backend))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_meta_device(dtype: torch.dtype) -> None:
    q, k, v = (torch.empty(2, 4, 9, 3, device="meta", dtype=dtype, requires_grad=True) for _ in range(3))
    o, state = fastmax_attention(q, k, v, is_causal=True, return_state=True)
    assert (o.device.type, o.dtype, o.shape) == ("meta", dtype, (2, 4, 9, 3))
    assert (state.device.type, state.dtype, state.shape) == ("meta", torch.float32, (2, 4, 10, 4))
    (dq,) = torch.autograd.grad(o.float().sum() + state.sum(), q)
    assert (dq.device.type, dq.shape) == ("meta", q.shape)


def test_only_tensors_of_the_size_of_the_inputs_are_saved(backend: str) -> None:
    """q, k, v, o, g: nothing of N x N or N x F."""
    saved: list[int] = []

    def pack(x: Tensor) -> Tensor:
        saved.append(x.numel())
        return x

    q, k, v = (randn(600, 8, grad=True) for _ in range(3))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x), forced(dense=False):
        o = support.fastmax_attention(q, k, v, is_causal=True, backend=backend)
    assert sorted(saved) == [600, *[600 * 8] * 4]
    torch.autograd.grad(o.sum(), q)
