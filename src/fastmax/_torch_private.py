"""All that fastmax uses of PyTorch beyond its public interface: a symbol that is missing switches a shortcut off."""

import ctypes
from collections.abc import Sequence
from ctypes import CFUNCTYPE, c_int32, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

NOBODY, AUTOGRAD, TRANSFORM, OTHERS = range(4)
"""Who has to see an op, from `watchers`."""


def _symbol(path: str) -> Any:
    """torch.<path>, or None if this version of PyTorch has no such thing."""
    found: Any = torch
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


_functorch_level = _symbol("_C._functorch.maybe_current_level")
_dispatch_modes = _symbol("_C._len_torch_dispatch_stack")
_function_modes = _symbol("_C._len_torch_function_stack")
_tracing_state = _symbol("_C._get_tracing_state")
_profiling = _symbol("autograd._profiler_enabled")
_KNOWN = None not in (_functorch_level, _dispatch_modes, _function_modes, _tracing_state, _profiling) and hasattr(
    forward_ad, "_current_level"
)


def watchers(tensors: Sequence[Tensor], *, on_gpus_too: bool = False) -> int:
    """Who has to see an op on these tensors. For nobody it need not be one: dispatching takes longer than a short attention.

    NOBODY: plain tensors on the CPU (or on a GPU, if these count too) that no autograd, compiler, tracer, transform, mode or
    profiler follows. AUTOGRAD: the same but for gradients. TRANSFORM: a torch.func transform is at work. OTHERS: all else.
    """
    if torch.compiler.is_compiling() or not _KNOWN:
        return OTHERS
    if _functorch_level() is not None:
        return TRANSFORM
    if _dispatch_modes() or _function_modes() or _tracing_state() or _profiling() or forward_ad._current_level >= 0:
        return OTHERS
    found, graded = NOBODY, torch.is_grad_enabled()
    for x in tensors:
        kind = type(x)
        if kind is not Tensor and kind is not torch.nn.Parameter:
            return OTHERS
        if not (x.is_cpu or (on_gpus_too and x.is_cuda)):
            return OTHERS
        # the dispatcher would resolve a pending negation or zeros that are not there yet, and refuse an unknown layout
        if x.layout is not torch.strided or x.is_neg() or x.is_nested or x._is_zerotensor():
            return OTHERS
        if graded and x.requires_grad:
            found = AUTOGRAD
    return found


def unwatched(*tensors: Tensor) -> bool:
    return watchers(tensors, on_gpus_too=True) == NOBODY


def has_tangent(tensors: Sequence[Tensor]) -> bool:
    """Return True if any of these tensors has a forward-mode tangent."""
    if torch.compiler.is_compiling() or getattr(forward_ad, "_current_level", -1) < 0:
        return False
    return any(forward_ad.unpack_dual(x).tangent is not None for x in tensors)  # type: ignore[no-untyped-call]


def parallel_for() -> int | None:
    """Return the address of torch's thread pool, of C linkage since 2.10. A second pool would compete for the cores."""
    body = CFUNCTYPE(None, c_int64, c_int64, c_void_p)
    try:
        function = ctypes.CDLL(torch._C.__file__).torch_parallel_for
    except AttributeError:
        return None
    function.argtypes, function.restype = [c_int64, c_int64, c_int64, body, c_void_p], c_int32
    return ctypes.cast(function, c_void_p).value


def assert_later(condition: Tensor, message: str) -> None:
    """For compiled code, where a branch on data would break the graph; without it the condition goes unchecked there."""
    check = _symbol("_assert_async")
    if check is not None:
        check(condition, message)


def assert_on_device(condition: Tensor, message: str) -> None:
    """Check a condition on a GPU without waiting for it: if it fails, the device stops with the message."""
    torch._assert_async(condition, message)
