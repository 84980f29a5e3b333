"""The C ABI of the kernels: native/api.h as ctypes structures, the library itself, and torch's threads for it to run on."""

import ctypes
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_double, c_int, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec

import torch
from torch import Tensor

TYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
FORMS = {"dense": 1, "factorized": 2}
MAX_DIM = 256  # channels per head
_NO_MEMORY = 1
_LARGE = 1 << 22


class FmTensor(Structure):
    _fields_ = [("data", c_void_p), *[(f"{x}_stride", c_int64) for x in ("batch", "head", "token")], ("type", c_int64)]


class FmCall(Structure):
    _fields_ = [
        *[(x, c_int64) for x in ("type", "batch", "query_heads", "key_heads", "queries", "keys")],
        *[(x, c_int64) for x in ("head_dim", "value_dim", "order", "is_causal", "normalize", "sequences")],
        ("form", c_void_p),
        *[(x, c_double) for x in ("scale", "eps")],
        *[(x, FmTensor) for x in ("q", "k", "v", "o", "g", "d_o", "d_g", "d_q", "d_k", "d_v")],
        ("mask", c_void_p),
        *[(f"mask_{x}_stride", c_int64) for x in ("batch", "head", "token")],
        *[(x, c_void_p) for x in ("cu_queries", "cu_keys", "head_scale", "d_head_scale")],
        *[(x, c_void_p) for x in ("state_in", "state_out", "d_state_out", "d_state_in")],
    ]


class FmStep(Structure):
    _fields_ = [
        *[(x, c_int64) for x in ("type", "batch", "query_heads", "key_heads", "head_dim", "value_dim")],
        *[(x, c_int64) for x in ("order", "normalize")],
        *[(x, c_double) for x in ("scale", "eps")],
        *[(x, FmTensor) for x in ("q", "k", "v", "o")],
        *[(x, c_void_p) for x in ("mask", "head_scale", "state")],
    ]


class FmPool(Structure):
    _fields_ = [("parallel_for", c_void_p), ("threads", c_int64)]


@dataclass(frozen=True)
class Library:
    """The loaded kernels: `levels` are all that are compiled in, the best first, `running` those this processor runs."""

    functions: ctypes.CDLL
    parallel_for: int | None
    levels: tuple[str, ...]
    running: tuple[str, ...]

    def huge_pages(self, x: Tensor) -> None:
        """For a large tensor that was just allocated: page faults in small pages can take longer than filling it."""
        if x.nbytes >= _LARGE:
            self.functions.fm_huge_pages(x.data_ptr(), x.nbytes)

    def run(self, function: str, call: Structure, level: str | None) -> None:
        name = self.running[0] if level is None else level
        if name not in self.running:
            raise ValueError(f"level must be one that runs here, {', '.join(self.running)}, got {name!r}")
        pool = FmPool(self.parallel_for, torch.get_num_threads())
        status = getattr(self.functions, function)(self.levels.index(name), ctypes.byref(call), ctypes.byref(pool))
        if status == _NO_MEMORY:
            raise MemoryError("the native kernels could not allocate their scratch memory")


def tensor(x: Tensor | None) -> FmTensor:
    """(B, H, N, C) or (B, H, N), the channels contiguous."""
    return FmTensor() if x is None else FmTensor(x.data_ptr(), *x.stride()[:3], TYPES[x.dtype])


@lru_cache(maxsize=1)
def load() -> Library | str:
    """The library, or why there is none."""
    spec = find_spec("fastmax.backends.native._kernels")  # found, not imported: it is no Python module
    if spec is None or spec.origin is None:
        return "the kernels were not built: no C++ compiler worked when fastmax was installed"
    try:
        functions = ctypes.CDLL(spec.origin)
    except OSError as error:
        return f"the kernels do not load: {error}"
    for name, structure in (("fm_forward", FmCall), ("fm_backward", FmCall), ("fm_step", FmStep)):
        function = getattr(functions, name)  # by attribute: an item would be a new object each time
        function.argtypes = [c_int64, POINTER(structure), POINTER(FmPool)]
        function.restype = c_int
    functions.fm_huge_pages.argtypes, functions.fm_huge_pages.restype = [c_void_p, c_int64], None
    functions.fm_level_name.argtypes, functions.fm_level_name.restype = [c_int64], c_char_p
    functions.fm_level_runs.argtypes, functions.fm_level_runs.restype = [c_int64], c_int
    functions.fm_call_size.restype = functions.fm_level_count.restype = c_int64
    if functions.fm_call_size() != ctypes.sizeof(FmCall):
        return f"the kernels at {spec.origin} are of another version: build fastmax again"
    count = functions.fm_level_count()
    levels = tuple(functions.fm_level_name(i).decode() for i in range(count))
    running = tuple(name for i, name in enumerate(levels) if functions.fm_level_runs(i))
    return Library(functions, _torch_parallel_for(), levels, running)


def _torch_parallel_for() -> int | None:
    """torch's own thread pool, of C linkage since 2.10; a second pool beside it would compete for the cores."""
    body = CFUNCTYPE(None, c_int64, c_int64, c_void_p)
    torch_library = ctypes.CDLL(torch._C.__file__)
    try:
        function = torch_library.torch_parallel_for
    except AttributeError:
        return None
    function.argtypes, function.restype = [c_int64, c_int64, c_int64, body, c_void_p], c_int32
    return ctypes.cast(function, c_void_p).value
