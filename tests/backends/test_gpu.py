"""The Triton backend on a GPU (`make test-gpu`): sizes that nothing else can run, equal bits, no waiting, decoding."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from fastmax import fastmax_attention, fastmax_varlen_attention
from fastmax.backends import chunked, triton
from fastmax.features import feature_count
from fastmax.plan import Plan
from fastmax.state import decode
from tests.backends.conformance import make, output_grads
from tests.support import with_grads

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that torch can use"),
]

CLOSE = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 2e-5}
"""Relative to the norm, of sums over tens of thousands of tokens."""


def on_gpu(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=torch.float32, device="cuda").to(dtype)


def assert_close(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    error = (actual.double() - expected.double()).norm() / expected.double().norm()
    assert error < CLOSE[dtype], error.item()


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("dim", [20, 63, 64, 128])
@pytest.mark.parametrize("is_causal", [True, False])
def test_long_sequences(dim: int, is_causal: bool, dtype: torch.dtype) -> None:
    """65,537 tokens, against plain PyTorch in fp64."""
    inputs = [on_gpu(1, heads, 65537, dim, dtype=dtype) for heads in (2, 1, 1)]
    do = on_gpu(1, 2, 65537, dim, dtype=dtype)
    options: dict[str, Any] = {"is_causal": is_causal, "enable_gqa": True, "scale": dim**-0.5}
    found = with_grads(fastmax_attention, inputs, do, backend="triton", **options)
    exact = with_grads(fastmax_attention, [x.double() for x in inputs], do.double(), backend="chunked", **options)
    for actual, expected in zip(found, exact, strict=True):
        assert_close(actual, expected, dtype)


@pytest.mark.parametrize("is_causal", [True, False])
def test_more_sequences_than_an_axis_of_a_grid_has(is_causal: bool) -> None:
    lengths = torch.randint(0, 4, (70000,), device="cuda")
    cu = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).int()
    total = int(cu[-1])
    q, k, v = (on_gpu(total, 1, 16) for _ in range(3))
    packed = fastmax_varlen_attention(q, k, v, cu, cu, is_causal=is_causal, scale=1 / 16, backend="triton")
    some = cu[:500].tolist()
    for a, b in pairwise(some):
        if b > a:
            alone = (x[a:b].transpose(0, 1) for x in (q, k, v))
            expected = fastmax_attention(*alone, is_causal=is_causal, scale=1 / 16, backend="chunked").transpose(0, 1)
            torch.testing.assert_close(packed[a:b], expected, rtol=1e-4, atol=1e-4)


def test_offsets_beyond_31_bits() -> None:
    heads, tokens, dim = 33, 1 << 20, 64
    if torch.cuda.mem_get_info()[0] < 48e9:
        pytest.skip("needs 48 GB of free memory")
    q, k, v = (torch.empty(1, heads, tokens, dim, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    for x in (q, k, v):
        for head in range(heads):
            x[0, head].normal_()
    o = fastmax_attention(q, k, v, is_causal=True, scale=1 / 8, backend="triton")
    last = (x[:, -1:] for x in (q, k, v))  # one head has other spans, so sums are taken in another order
    assert_close(o[:, -1:], fastmax_attention(*last, is_causal=True, scale=1 / 8, backend="triton"), o.dtype)


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
def test_the_same_bits_twice(dtype: torch.dtype) -> None:
    q, k, v = (on_gpu(2, 4, 9000, 64, dtype=dtype) for _ in range(3))
    call = make(q, k, v, is_causal=True, log_decay=-torch.rand(2, 4, 9000, device="cuda") / 100, out_dtype=dtype)
    grads = output_grads(call)
    grads = type(grads)(*(None if x is None else x.cuda() for x in grads))
    results = []
    for _ in range(2):
        o, g, _ = triton.forward(call, Plan("factorized"))
        results.append([o, g, *triton.backward(call, Plan("factorized"), o, g, grads)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@contextmanager
def no_waiting() -> Iterator[None]:
    """Make each wait for the device an error."""
    try:
        with warnings.catch_warnings():  # that the mode is a prototype
            warnings.simplefilter("ignore", UserWarning)
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_packed_calls_wait_for_nothing() -> None:
    q, k, v = (on_gpu(3000, 2, 64, dtype=torch.bfloat16).requires_grad_() for _ in range(3))
    cu = torch.tensor([0, 1000, 1000, 3000], dtype=torch.int32, device="cuda")

    def call() -> None:
        o = fastmax_varlen_attention(q, k, v, cu, cu, is_causal=True, backend="triton")
        o.backward(torch.ones_like(o))

    call()  # compiles
    with no_waiting():
        call()


@pytest.mark.parametrize("backward", [False, True])
def test_memory_is_bounded(backward: bool) -> None:
    q, k, v = (on_gpu(1, 8, 1 << 17, 64, dtype=torch.bfloat16).requires_grad_(backward) for _ in range(3))

    def call() -> None:
        o = fastmax_attention(q, k, v, is_causal=True, backend="triton")
        if backward:
            torch.autograd.grad(o, [q, k, v], torch.ones_like(o))

    call()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    tensors = (
        (15 if backward else 8) * q.numel() * q.element_size()
    )  # o, its gradient, w, and tokens as the kernels take them
    states = torch.cuda.get_device_properties(0).total_memory // 64
    assert torch.cuda.max_memory_allocated() - before < tensors + states + (1 << 30)


@pytest.mark.parametrize("order", [1, 2])
def test_decoding(order: int) -> None:
    dim, held = 64, 100
    q, k, v = on_gpu(4, 8, 1, dim), on_gpu(4, 4, 1, dim), on_gpu(4, 4, 1, dim)
    before = make(on_gpu(4, 4, 0, dim), on_gpu(4, 4, 500, dim), on_gpu(4, 4, 500, dim), order=order, return_state=True)
    total = chunked.forward(before, Plan())[2]
    assert total.shape[2] == feature_count(dim, order)
    buffers = [
        total,
        on_gpu(4, 4, 128, dim) / 8,
        on_gpu(4, 4, 128, dim + 1).abs(),
        -torch.rand(4, 4, 128, device="cuda"),
    ]
    results = []
    for prepare in (decode.prepare_step, triton.prepare_step):
        own = [x.clone() for x in buffers]
        decay = torch.full((4, 4, 1), -0.1, device="cuda")
        step = prepare(q, k, v, *own, None, decay, order=order, scale=1 / dim, normalize="standardize")
        o = step(q, k, v, None, None, decay, held, 8)
        results.append([o, own[0], *(x[:, :, : held - 7] for x in own[1:])])
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
