"""The C ABI of the kernels: native/api.h as packed bytes, the library itself, and torch's threads for it to run on."""

import ctypes
from collections.abc import Callable
from ctypes import c_char_p, c_int, c_int64, c_void_p
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from struct import Struct
from typing import Any

import torch
from torch import Tensor

from fastmax import _torch_private

TYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
FORMS = {"dense": 1, "factorized": 2}
MAX_DIM = 256  # channels per head

Fields = tuple[int, ...]
"""Consecutive fields of a structure; pointers are integers, 0 where there is none."""

NO_TENSOR: Fields = (0,) * 5

# Every field has eight bytes. ctypes structures would be easier to read, but filling one takes longer than a short attention.
CALL = Struct("@14q2d50q12q")
STEP = Struct("@8q2d20q3q")

_NO_MEMORY = 1
_LARGE = 1 << 22


@dataclass(frozen=True)
class Library:
    """The loaded kernels: `levels` are all that are compiled in, the best first, `running` those this processor runs."""

    functions: dict[str, Callable[..., Any]]
    parallel_for: int | None
    levels: tuple[str, ...]
    running: tuple[str, ...]

    def huge_pages(self, x: Tensor) -> None:
        """For a large tensor that was just allocated: page faults in small pages can take longer than filling it."""
        if x.nbytes >= _LARGE:
            self.functions["huge_pages"](x.data_ptr(), x.nbytes)

    def run(self, function: str, call: bytes, level: str | None) -> None:
        if level is None:
            level = self.running[0]
        elif level not in self.running:
            raise ValueError(f"level must be one that runs here, {', '.join(self.running)}, got {level!r}")
        status = self.functions[function](self.levels.index(level), call, self.parallel_for, torch.get_num_threads())
        if status == _NO_MEMORY:
            raise MemoryError("the native kernels could not allocate their scratch memory")


def tensor(x: Tensor | None) -> Fields:
    """(B, H, N, C) or (B, H, N), the channels contiguous."""
    return NO_TENSOR if x is None else (x.data_ptr(), *x.stride()[:3], TYPES[x.dtype])


@lru_cache(maxsize=1)
def load() -> Library | str:
    """The library, or why there is none."""
    spec = find_spec("fastmax.backends.native._kernels")  # found, not imported: it is no Python module
    if spec is None or spec.origin is None:
        return "the kernels were not built: no C++ compiler worked when fastmax was installed"
    try:
        c = ctypes.CDLL(spec.origin)
    except OSError as error:
        return f"the kernels do not load: {error}"
    functions: dict[str, Callable[..., Any]] = {}
    for name in ("forward", "backward", "step"):
        function = getattr(c, f"fm_{name}")
        function.argtypes, function.restype = [c_int64, c_char_p, c_void_p, c_int64], c_int
        functions[name] = function
    c.fm_huge_pages.argtypes, c.fm_huge_pages.restype = [c_void_p, c_int64], None
    functions["huge_pages"] = c.fm_huge_pages
    c.fm_level_name.argtypes, c.fm_level_name.restype = [c_int64], c_char_p
    c.fm_level_runs.argtypes, c.fm_level_runs.restype = [c_int64], c_int
    c.fm_call_size.restype = c.fm_step_size.restype = c.fm_level_count.restype = c_int64
    if (c.fm_call_size(), c.fm_step_size()) != (CALL.size, STEP.size):
        return f"the kernels at {spec.origin} are of another version: build fastmax again"
    levels = tuple(c.fm_level_name(i).decode() for i in range(c.fm_level_count()))
    running = tuple(name for i, name in enumerate(levels) if c.fm_level_runs(i))
    return Library(functions, _torch_private.parallel_for(), levels, running)
