"""Every private symbol of PyTorch that fastmax uses. If one is missing, a shortcut is switched off."""

import ctypes
import inspect
from collections.abc import Callable, Sequence
from ctypes import CFUNCTYPE, c_int32, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

NO_WATCHER, AUTOGRAD, TRANSFORM, ON_DEVICE, OTHER_WATCHER = range(5)
"""The kinds of watcher that intercept a call, as `find_watcher` returns them."""


def _symbol(path: str) -> Any:
    """Return torch.<path>, or None if this version of PyTorch has no such symbol."""
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


def find_watcher(tensors: Sequence[Tensor], *, on_gpus_too: bool = False) -> int:
    """Return what must intercept a call on these tensors.

    With NO_WATCHER the dispatcher can be skipped, which takes longer than a short attention.

    NO_WATCHER: plain tensors on the CPU (or on a GPU, with `on_gpus_too`), and no autograd, compiler, tracer, transform, mode
    or profiler is active. AUTOGRAD: the same, but for gradients. TRANSFORM: a torch.func transform. ON_DEVICE: NO_WATCHER or
    AUTOGRAD, but some tensors are on an accelerator. OTHER_WATCHER: all else.
    """
    if torch.compiler.is_compiling() or not _KNOWN:
        return OTHER_WATCHER
    if _functorch_level() is not None:
        return TRANSFORM
    if _dispatch_modes() or _function_modes() or _tracing_state() or _profiling() or forward_ad._current_level >= 0:
        return OTHER_WATCHER
    found, graded, on_device = NO_WATCHER, torch.is_grad_enabled(), False
    for x in tensors:
        kind = type(x)
        if kind is not Tensor and kind is not torch.nn.Parameter:
            return OTHER_WATCHER
        on_device = on_device or not (x.is_cpu or (on_gpus_too and x.is_cuda))
        # the dispatcher would resolve a pending negation or zeros that are not there yet, and refuse an unknown layout
        if x.layout is not torch.strided or x.is_neg() or x.is_nested or x._is_zerotensor():
            return OTHER_WATCHER
        if graded and x.requires_grad:
            found = AUTOGRAD
    return ON_DEVICE if on_device else found


def has_no_watcher(*tensors: Tensor) -> bool:
    """Return True if nothing intercepts a call on these tensors, on the CPU or on a GPU."""
    return find_watcher(tensors, on_gpus_too=True) == NO_WATCHER


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


def compile_variants(function: Any, most: int, **options: Any) -> Any:
    """Compile a function for sizes that vary, in at most as many variants. Before PyTorch 2.13 its own limit holds."""
    if "recompile_limit" in inspect.signature(torch.compile).parameters:
        options["recompile_limit"] = most
    return torch.compile(function, dynamic=True, **options)


def keep_channels_static(x: Tensor) -> Tensor:
    """Return the same tensor for torch.compile to compile for its number of channels, when all other sizes may vary.

    A reduction over an unknown number of channels reads them in a loop, twice, and stores what it computes in between.
    """
    mark = _symbol("_dynamo.mark_static")
    x = x.detach() if not x.requires_grad else x.view_as(x)  # not on the caller's tensor
    if mark is not None:
        mark(x, x.dim() - 1)
    return x


def assert_later(condition: Tensor, message: str) -> None:
    """Check a condition when compiled code runs, without a graph break. An older torch cannot, and checks nothing."""
    check = _symbol("_assert_async")
    if check is not None:
        check(condition, message)


def assert_on_device(condition: Tensor, message: str) -> None:
    """Check a condition on a GPU without waiting for it: if it fails, the device stops with the message."""
    torch._assert_async(condition, message)


def constant_while_tracing(function: Callable[[], bool]) -> Callable[[], bool]:
    """Let torch.compile call a function while it traces, and keep the result: what `torch.compiler` does too.

    Its own decorator imports the compiler, which takes a second.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
