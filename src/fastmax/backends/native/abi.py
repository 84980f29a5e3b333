"""The C ABI of the kernels: native/api.h as packed bytes, the library itself, and torch's threads for it to run on."""

import ctypes
from array import array
from collections.abc import Callable
from ctypes import c_char_p, c_int, c_int64, c_void_p
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from struct import pack_into
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fastmax import _torch_private

TYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
NORMALIZATIONS = {"none": 0, "standardize": 1, "rms": 2}
DROPOUTS = {None: 0, "standard": 1, "1d": 2, "quadratic": 3}
FORMS = {"dense": 1, "factorized": 2, "by_reach": 3}
MAX_DIM = 256  # channels per head
BF16_LEVEL = "x86-64-v4-bf16"  # whose dense form multiplies in bf16

Words: TypeAlias = "array[int]"
"""A structure in words of eight bytes; pointers are integers, 0 where there is none."""

# Each structure as (field, kind), in the order of its fields; `load` compares them with the library's own lists.
TENSOR_FIELDS = (
    ("data", "pointer"), ("batch_stride", "int"), ("head_stride", "int"), ("token_stride", "int"), ("type", "int"),
)  # fmt: skip
CALL_FIELDS = (
    ("type", "int"), ("batch", "int"), ("query_heads", "int"), ("key_heads", "int"), ("queries", "int"), ("keys", "int"),
    ("head_dim", "int"), ("value_dim", "int"), ("order", "int"), ("is_causal", "int"), ("normalize", "int"),
    ("chunk", "int"), ("sequences", "int"), ("form", "int"), ("forms", "pointer"), ("scale", "real"), ("eps", "real"),
    ("q", "tensor"), ("k", "tensor"), ("v", "tensor"), ("o", "tensor"), ("g", "tensor"), ("log_decay", "tensor"),
    ("d_o", "tensor"), ("d_g", "tensor"), ("d_q", "tensor"), ("d_k", "tensor"), ("d_v", "tensor"), ("d_decay", "tensor"),
    ("mask", "pointer"), ("mask_batch_stride", "int"), ("mask_head_stride", "int"), ("mask_token_stride", "int"),
    ("cu_queries", "pointer"), ("cu_keys", "pointer"), ("head_scale", "pointer"), ("d_head_scale", "pointer"),
    ("state_in", "pointer"), ("state_out", "pointer"), ("d_state_out", "pointer"), ("d_state_in", "pointer"),
    ("dropout", "int"), ("dropped", "int"), ("dropout_seed", "pointer"), ("state_is_total", "int"),
)  # fmt: skip
STEP_FIELDS = (
    ("type", "int"), ("batch", "int"), ("query_heads", "int"), ("key_heads", "int"), ("head_dim", "int"),
    ("value_dim", "int"), ("order", "int"), ("normalize", "int"), ("recent_count", "int"), ("recent_capacity", "int"),
    ("fold", "int"), ("scale", "real"), ("eps", "real"), ("q", "tensor"), ("k", "tensor"), ("v", "tensor"), ("o", "tensor"),
    ("mask", "pointer"), ("head_scale", "pointer"), ("total", "pointer"), ("recent_k", "pointer"), ("recent_u", "pointer"),
    ("recent_decay", "pointer"), ("total_decay", "pointer"), ("log_decay", "tensor"),
)  # fmt: skip
STATUSES = (
    "OK",
    "NO_MEMORY",
    "BAD_LEVEL",
    "BAD_TYPE",
    "BAD_ORDER",
    "BAD_FORM",
    "BAD_CHUNK",
    "BAD_DIM",
    "BAD_DECAY",
    "BAD_NORMALIZE",
    "BAD_DECAY_VALUE",
    "BAD_DROPOUT",
)
_REFUSALS = {
    "BAD_LEVEL": "the level must be one that runs here",
    "BAD_TYPE": "the arithmetic must be float32 or float64, a tensor one of these, bfloat16 or float16",
    "BAD_ORDER": "order must be 1 to 4 in the dense form, 1 or 2 in the factorized one and in a step",
    "BAD_FORM": "form must be 1 (dense), 2 (factorized) or, with decays and without states, 3 (by reach)",
    "BAD_CHUNK": "chunk must be a multiple of 32, from 32 to 4096, and recent tokens fewer than there is room for",
    "BAD_NORMALIZE": "normalize must be 0 (as it is), 1 (standardize) or 2 (rms)",
    "BAD_DECAY": "log_decay must be of the type of the arithmetic, in self attention",
    "BAD_DECAY_VALUE": "log_decay must be finite and at most 0",
    "BAD_DROPOUT": "dropout must be 0 to 3, drop less than 2^16 of 2^16, have a seed and, for features, the factorized form",
    "BAD_DIM": f"head_dim and value_dim must be 1 to {MAX_DIM}",
}


def _layouts() -> dict[str, list[str]]:
    """Return the text that fm_layout of a compatible library returns, by name."""
    types = {torch.float32: "F32", torch.float64: "F64", torch.bfloat16: "BF16", torch.float16: "F16"}
    return {
        "FmType": [f"{types[dtype]} {value}" for dtype, value in TYPES.items()],
        "FmNormalize": ["AS_IT_IS 0", "STANDARDIZE 1", "RMS 2"],
        "FmDropout": ["NO_DROPOUT 0", "STANDARD 1", "TOKENS 2", "QUADRATIC 3"],
        "FmForm": [f"{name.upper()} {value}" for name, value in FORMS.items()],
        "FmStatus": [f"{name} {value}" for value, name in enumerate(STATUSES)],
        "FmTensor": [" ".join(x) for x in TENSOR_FIELDS],
        "FmCall": [" ".join(x) for x in CALL_FIELDS],
        "FmStep": [" ".join(x) for x in STEP_FIELDS],
    }


def layout_difference(text: str) -> str | None:
    """Return the first difference between fm_layout's text and what this module packs, or None."""
    found = dict(line.split(": ", 1) for line in text.splitlines())
    for name, expected in _layouts().items():
        got = [x for x in found.get(name, "").split(", ") if x]
        for i in range(max(len(expected), len(got))):
            here, there = (x[i] if i < len(x) else "nothing" for x in (expected, got))
            if here != there:
                return f"field {i} of {name} is {here!r} in abi.py and {there!r} in the kernels"
    return None


_TENSOR_PLACES = {name: i for i, (name, _) in enumerate(TENSOR_FIELDS)}
_OF_TENSOR = [_TENSOR_PLACES[name] for name in ("data", "batch_stride", "head_stride", "token_stride", "type")]


class Packer:
    """The one way to fill a structure: fields by their names. To fill a ctypes structure takes longer than a short call."""

    def __init__(self, fields: tuple[tuple[str, str], ...]) -> None:
        self.kinds = dict(fields)
        self.places: dict[str, int] = {}  # the word of each field, the first one of a tensor
        self._size = 0
        for name, kind in fields:
            self.places[name] = self._size
            self._size += len(TENSOR_FIELDS) if kind == "tensor" else 1

    def pack(self, **values: float) -> Words:
        """Return a structure with these numbers and pointers, and zeros in all other fields."""
        words = array("q", bytes(8 * self._size))
        for name, value in values.items():
            if self.kinds[name] == "real":
                pack_into("d", words, 8 * self.places[name], value)
            else:
                words[self.places[name]] = int(value)
        return words

    def put(self, words: Words, **tensors: Tensor | None) -> None:
        """Fill in tensors of shape (B, H, N, C) or (B, H, N), their channels contiguous. None leaves zeros."""
        for name, x in tensors.items():
            if x is None:
                continue
            place = self.places[name]
            for field, value in zip(_OF_TENSOR, (x.data_ptr(), *x.stride()[:3], TYPES[x.dtype]), strict=True):
                words[place + field] = value


CALL = Packer(CALL_FIELDS)
STEP = Packer(STEP_FIELDS)

_LARGE = 1 << 22


@dataclass(frozen=True)
class Library:
    """The loaded kernels: `levels` are all that are compiled in, the best first, `running` those this processor runs."""

    functions: dict[str, Callable[..., Any]]
    parallel_for: int | None
    levels: tuple[str, ...]
    running: tuple[str, ...]
    best: int  # the place of the first that runs

    def huge_pages(self, x: Tensor) -> None:
        """Request huge pages for a large new tensor: faults in small pages can take longer than filling it."""
        if x.nbytes >= _LARGE:
            self.functions["huge_pages"](x.data_ptr(), x.nbytes)

    def level(self, name: str) -> int:
        """Return the index of a level in the library."""
        if name not in self.running:
            raise ValueError(f"level must be one that runs here, {', '.join(self.running)}, got {name!r}")
        return self.levels.index(name)

    def run(self, function: str, words: Words, level: str | None) -> None:
        place = self.best if level is None else self.level(level)
        address, _ = words.buffer_info()
        status = self.functions[function](place, address, self.parallel_for, torch.get_num_threads())
        if status:
            raise refusal(function, words, status)


class DecayValueError(ValueError):
    """A decay that is above 0 or not finite. The caller, who has the tensor, adds where."""


def refusal(function: str, words: Words, code: int) -> Exception:
    """Return the exception for a status code of the kernels."""
    status = STATUSES[code]
    if status == "NO_MEMORY":
        return MemoryError("the native kernels could not allocate their scratch memory")
    packer = STEP if function == "step" else CALL
    shown = ("type", "order", "form", "chunk", "head_dim", "value_dim", "dropout", "dropped")
    description = ", ".join(f"{name} {words[packer.places[name]]}" for name in shown if name in packer.places)
    tensors = {name: at for name, at in packer.places.items() if packer.kinds[name] == "tensor" and words[at]}
    got_types = {name: words[at + _TENSOR_PLACES["type"]] for name, at in tensors.items()}
    kind = DecayValueError if status == "BAD_DECAY_VALUE" else ValueError
    return kind(f"native.{function}: {_REFUSALS[status]}, got {description}, types of tensors {got_types}")


@lru_cache(maxsize=1)
def load() -> Library | str:
    """Return the library, or why it cannot be loaded."""
    spec = find_spec("fastmax.backends.native._kernels")  # found, not imported: it is no Python module
    if spec is None or spec.origin is None:
        return "the kernels were not built: no C++ compiler worked when fastmax was installed"
    try:
        c = ctypes.CDLL(spec.origin)
    except OSError as error:
        return f"the kernels do not load: {error}"
    if not hasattr(c, "fm_layout"):
        return f"the kernels at {spec.origin} are of another version: build fastmax again"
    c.fm_layout.restype = c_char_p
    difference = layout_difference(c.fm_layout().decode())
    if difference is not None:
        return f"the kernels at {spec.origin} are of another version, {difference}: build fastmax again"
    functions: dict[str, Callable[..., Any]] = {}
    for name in ("forward", "backward", "step"):
        function = getattr(c, f"fm_{name}")
        function.argtypes, function.restype = [c_int64, c_void_p, c_void_p, c_int64], c_int
        functions[name] = function
    c.fm_huge_pages.argtypes, c.fm_huge_pages.restype = [c_void_p, c_int64], None
    functions["huge_pages"] = c.fm_huge_pages
    c.fm_level_name.argtypes, c.fm_level_name.restype = [c_int64], c_char_p
    c.fm_level_runs.argtypes, c.fm_level_runs.restype = [c_int64], c_int
    c.fm_level_count.restype = c_int64
    levels = tuple(c.fm_level_name(i).decode() for i in range(c.fm_level_count()))
    running = tuple(name for i, name in enumerate(levels) if c.fm_level_runs(i))
    return Library(functions, _torch_private.parallel_for(), levels, running, levels.index(running[0]))
