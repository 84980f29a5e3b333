"""Defects that once were: each a call that crashed, or that was wrong without a word."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fastmax import (
    _eager_path,
    _torch_private,
    backends,
    dropout,
    fastmax_attention,
    fastmax_varlen_attention,
    reference_attention,
)  # fmt: skip
from fastmax.backends import chunked, native
from fastmax.call import Call, Options
from tests.support import randn


@pytest.mark.parametrize("mode", dropout.MODES)
@pytest.mark.parametrize("rate", [1 - 2**-16, 1 - 2**-17, 1 - 2**-18, 1 - 2**-30])
def test_the_highest_rates_drop_nearly_everything(rate: float, mode: str) -> None:
    """Something may be left, hardly anything is; what is left is finite."""
    seed = torch.tensor(7)
    kept = dropout.multipliers(mode, rate, seed, 0, (64,), 4096, 2, 2)
    kept = kept if mode == "1d" else kept[..., dropout.dropped_rows(mode, 2, 2)]
    share = (kept != 0).double().mean().item()
    assert 0 < share < 1e-3
    assert kept.max() == 2**16
    q = randn(2, 30, 3, grad=True)
    o = fastmax_attention(q, q, q, dropout_p=rate, dropout_mode=mode)
    assert o.isfinite().all()
    assert torch.autograd.grad(o.sum(), q)[0].isfinite().all()


@pytest.mark.parametrize("is_causal", [False, True])
def test_zero_heads(backend: str, is_causal: bool) -> None:
    q, k, v = (randn(2, 0, 9, 4, grad=True) for _ in range(3))
    log_decay = torch.zeros(2, 0, 9, requires_grad=True)
    for more in ({}, {"log_decay": log_decay}, {"scale": torch.ones(0)}, {"dropout_p": 0.5}):
        o = fastmax_attention(q, k, v, is_causal=is_causal, backend="auto" if "dropout_p" in more else backend, **more)
        assert o.shape == (2, 0, 9, 4)
        assert all(x.shape == (2, 0, 9, 4) for x in torch.autograd.grad(o.sum(), (q, k, v)))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested_tensors_are_refused(layout: torch.layout) -> None:
    nested = torch.nested.nested_tensor([torch.randn(5, 4), torch.randn(3, 4)], layout=layout)
    q = torch.randn(2, 5, 4)
    fastmax_attention(q, q, q)
    for arguments in ((nested, nested, nested), (q, nested, nested), (q, q, nested)):
        with pytest.raises(ValueError, match=r"must be a dense tensor, got a nested one.*fastmax_varlen_attention"):
            fastmax_attention(*arguments)


def test_other_layouts_are_refused() -> None:
    q = torch.randn(2, 5, 4)
    with pytest.raises(ValueError, match=r"value must be a dense tensor, got a torch.sparse_coo one"):
        fastmax_attention(q, q, q.to_sparse())


def test_zeros_that_are_not_there_yet(backend: str) -> None:
    q, k, v = (randn(2, 3, 9, 4) for _ in range(3))
    zeros = torch._efficientzerotensor((2, 3, 9, 4), dtype=torch.float64)
    for i in range(3):
        inputs: Any = [zeros if i == j else x for j, x in enumerate((q, k, v))]
        plain: Any = [torch.zeros(2, 3, 9, 4, dtype=torch.float64) if i == j else x for j, x in enumerate((q, k, v))]
        options: dict[str, Any] = {"is_causal": True, "backend": backend}
        actual = fastmax_attention(*inputs, **options)
        torch.testing.assert_close(actual, fastmax_attention(*plain, **options))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("is_causal", [False, True])
def test_the_gradient_of_one_scale_is_summed_before_it_is_rounded(
    backend: str, is_causal: bool, dtype: torch.dtype
) -> None:
    q, k, v, do = (randn(2, 64, 16, 8, dtype=torch.float32) for _ in range(4))  # which leave but one rounding
    scale = torch.tensor(0.25, dtype=dtype, requires_grad=True)
    exact = torch.tensor(0.25, dtype=torch.float64, requires_grad=True)
    o = fastmax_attention(q, k, v, is_causal=is_causal, scale=scale, backend=backend)
    (actual,) = torch.autograd.grad(o, scale, do)
    wide = reference_attention(q.double(), k.double(), v.double(), is_causal=is_causal, scale=exact)
    (expected,) = torch.autograd.grad(wide, exact, do.double())
    assert actual.dtype == dtype
    bound = torch.finfo(dtype).eps / 2 * abs(expected.item()) + 1e-4  # and that of fp32 sums
    assert abs(actual.item() - expected.item()) <= bound


@pytest.mark.parametrize("normalize", [True, "rms"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_huge_tokens_are_normalized_without_overflow(backend: str, dtype: torch.dtype, normalize: Any) -> None:
    """Normalize |q| = 1e30: its square is no fp32 number, its direction is."""
    q, k, v = (randn(2, 20, 8, dtype=dtype) for _ in range(3))
    huge = fastmax_attention(q * 2.0**100, k * 2.0**100, v, normalize=normalize, backend=backend)
    large = fastmax_attention(q * 2.0**20, k * 2.0**20, v, normalize=normalize, backend=backend)
    torch.testing.assert_close(huge, large)
    assert (huge - huge.mean(1, keepdim=True)).abs().max() > 0.01
    reference = reference_attention(q.double() * 2.0**100, k.double() * 2.0**100, v.double(), normalize=normalize)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(huge.double(), reference, rtol=0, atol=64 * eps)


class Watch(torch.utils._python_dispatch.TorchDispatchMode):
    """A recorder of the ops that run."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Ask(torch.overrides.TorchFunctionMode):
    """A recorder of the functions that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("grad", [False, True])
def test_the_fast_path_steps_aside(backend: str, grad: bool) -> None:
    """For a profiler, a function mode and a dispatch mode, forward and backward."""
    q, k, v = (randn(2, 9, 4, grad=grad) for _ in range(3))
    plain = fastmax_attention(q, k, v, backend=backend)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        o = fastmax_attention(q, k, v, backend=backend)
        if grad:
            o.sum().backward()
    assert torch.equal(o, plain)
    names = {event.name for event in profile.events()}
    assert "fastmax::forward" in names
    assert ("fastmax::backward" in names) == grad
    with Ask() as ask:
        assert torch.equal(fastmax_attention(q, k, v, backend=backend), plain)
    assert any("fastmax.forward" in name or "fastmax::forward" in name for name in ask.seen), ask.seen
    late = fastmax_attention(q, k, v, backend=backend)
    with Watch() as watch:
        if grad:
            late.sum().backward()
    assert any("fastmax.backward" in name for name in watch.seen) == grad


def test_without_a_private_symbol_everything_is_an_op(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (randn(2, 9, 4, dtype=torch.float32, grad=True) for _ in range(3))
    expected = fastmax_attention(q, k, v, backend=backend)
    grads = torch.autograd.grad(expected.sum(), (q, k, v))
    monkeypatch.setattr(_torch_private, "_KNOWN", False)
    monkeypatch.setattr(_torch_private, "_functorch_level", None)
    assert _torch_private.find_watcher((q,)) == _torch_private.OTHER_WATCHER
    assert not _torch_private.has_no_watcher(q.detach())
    monkeypatch.setattr(_eager_path, "run_call", None)
    monkeypatch.setattr(_eager_path, "run_prepared_call", None)
    o = fastmax_attention(q, k, v, backend=backend)
    assert torch.equal(o, expected)
    for a, b in zip(torch.autograd.grad(o.sum(), (q, k, v)), grads, strict=True):
        assert torch.equal(a, b)


def test_a_missing_symbol_is_none() -> None:
    assert _torch_private._symbol("_C._nothing_of_this_name.at_all") is None
    assert _torch_private._symbol("is_grad_enabled") is torch.is_grad_enabled


@pytest.mark.skipif(not native.levels(), reason="there is but one backend")
@pytest.mark.parametrize("more", [{}, {"scale": torch.ones(2)}], ids=["prepared", "eager"])
def test_the_backend_of_the_forward_pass_runs_backward(more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (randn(2, 9, 4, dtype=torch.float32, grad=True) for _ in range(3))
    o = fastmax_attention(q, k, v, is_causal=True, **more)
    monkeypatch.setattr(native, "unsupported", lambda _: "it is busy")
    assert backends.resolve(_call(q, k, v)) is chunked

    def refuse(*_: Any) -> None:
        raise AssertionError("another backend was asked")

    monkeypatch.setattr(chunked, "backward", refuse)
    o.sum().backward()
    assert q.grad is not None


def _call(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return Call(q[None], k[None], v[None], options=Options(scale=1.0, out_dtype=v.dtype))


@pytest.mark.parametrize("more", [{}, {"is_causal": True}, {"order": 3}], ids=str)
def test_a_default_device_of_the_users_own(backend: str, more: dict[str, Any]) -> None:
    """Check that a backend allocates on the device of the tensors."""
    q, k, v = (randn(1, 2, 70, 4, grad=True) for _ in range(3))
    log_decay, mask = torch.full((2, 70), -0.1, dtype=torch.float64), torch.rand(70) > 0.2
    ends = torch.tensor([0, 30, 70])
    for extra in ({}, {"log_decay": log_decay}, {"attn_mask": mask}, {"dropout_p": 0.3}):
        options: dict[str, Any] = {"backend": "auto" if "dropout_p" in extra else backend} | more | extra
        torch.manual_seed(0)
        expected = fastmax_attention(q, k, v, **options)
        expected_grads = torch.autograd.grad(expected.sum(), (q, k, v))
        torch.manual_seed(0)
        with torch.device("meta"):
            o = fastmax_attention(q, k, v, **options)
            grads = torch.autograd.grad(o.sum(), (q, k, v))
        assert torch.equal(o, expected)
        assert all(torch.equal(a, b) for a, b in zip(grads, expected_grads, strict=True))
    x = randn(70, 2, 4)
    with torch.device("meta"):
        o, state = fastmax_varlen_attention(x, x, x, ends, ends, return_state=True, backend=backend, is_causal=True)
    assert o.device.type == state.device.type == "cpu"
