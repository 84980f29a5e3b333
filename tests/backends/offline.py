"""Compile the kernels as they are launched, for GPUs that are not here, and read what they cost. Needs no driver and no GPU.

    python -m tests.backends.offline sm_80 sm_90 --head-dim 64 128 [--dtype bf16 fp32] [--case plain all] [--kernel read]

A driver that pretends to be a GPU takes the launches of real calls: their arguments are specialized on and compiled, and
nothing runs. One line of JSON per kernel. In a process of its own: under TRITON_INTERPRET nothing is compiled.
"""

import argparse
import json
import os
import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from fastmax.backends import triton
from fastmax.backends.triton import both_passes, device
from fastmax.backends.triton.decode import PreparedStep
from fastmax.backends.triton.tiles import Tiles, padded
from fastmax.backends.triton.work import Launch
from fastmax.call import Call, InputGrads, Options, OutputGrads
from fastmax.features import feature_count
from fastmax.plan import Plan

TARGETS = {f"sm_{version}": GPUTarget("cuda", version, 32) for version in (80, 86, 89, 90, 100, 120)}
TARGETS |= {name: GPUTarget("hip", name, 64) for name in ("gfx90a", "gfx942")}

SHARED = {"sm_80": 166912, "sm_90": 232448, "sm_100": 232448, "gfx90a": 65536, "gfx942": 65536}
"""Bytes of shared memory that a block may have, where it is not LESS_SHARED."""
LESS_SHARED = 101376

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class Case(NamedTuple):
    """A kind of call. `features`: two query heads per key head, a mask, a scale per head, a state in and out, and decays."""

    order: int = 2
    is_causal: bool = True
    features: bool = False
    packed: bool = False
    form: str = "factorized"


CASES = {
    "plain": Case(),
    "all": Case(features=True),
    "unmasked": Case(is_causal=False, features=True),
    "dense": Case(form="dense"),
    "packed": Case(packed=True),
    "linear": Case(order=1, features=True),
}


class Launched(NamedTuple):
    """One launch, and what was compiled for it, if anything was."""

    name: str
    grid: tuple[int, ...]
    constants: dict[str, Any]
    variant: str  # what it is specialized on
    built: Any
    seconds: float


class FakeDriver:
    """A driver that answers what Triton asks of a GPU before it launches."""

    def __init__(self, arch: str) -> None:
        self._target = TARGETS[arch]

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def map_python_to_cpp_type(self, kind: str) -> str:
        return kind


def install(arch: str, *, compiles: bool = True, only: Sequence[str] | None = None) -> list[Launched]:
    """Pretend to be a GPU for the rest of this process, and return the list that launches are appended to."""
    driver.set_active(FakeDriver(arch))
    setattr(device, "architecture", lambda _: arch)  # noqa: B010
    launched: list[Launched] = []
    launch: Callable[..., Any] = JITFunction.run

    def launch_and_note(self: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> Any:  # noqa: ARG001
        cache, _, _, _, binder = self.device_caches[0]
        _, specialization, options = binder(*args, **named | {"debug": False, "instrumentation_mode": ""})
        before, start = len(cache), time.perf_counter()
        wanted = compiles and (only is None or self.fn.__name__ in only)
        built = launch(self, *args, grid=grid, warmup=True, **named) if wanted else None
        new = built if len(cache) > before else None
        variant = f"{self.fn.__name__} {specialization} {options}"
        launched.append(Launched(self.fn.__name__, grid, named, variant, new, time.perf_counter() - start))
        return built

    JITFunction.run = launch_and_note
    return launched


def inputs(
    case: Case,
    dtype: torch.dtype,
    head_dim: int,
    *,
    where: str = "cpu",
    tokens: int = 2300,
    heads: int = 4,
    batch: int = 1,
) -> tuple[Call, Tensor]:
    """Return a call, with tokens outside heads, and the gradient of its output."""
    key_heads = heads // 2 if case.features else heads

    def zeros(heads: int) -> Tensor:
        return torch.zeros(batch, tokens, heads, head_dim, dtype=dtype, device=where).transpose(1, 2)

    more: dict[str, Any] = {}
    if case.features:
        more["key_mask"] = torch.ones(batch, 1, tokens, dtype=torch.bool, device=where)
        more["state_in"] = torch.zeros(
            batch, key_heads, feature_count(head_dim, case.order), head_dim + 1, device=where
        )
        more["head_scale"] = torch.ones(heads, device=where)
        if case.is_causal:
            more["log_decay"] = torch.zeros(batch, key_heads, tokens, device=where)
    if case.packed:
        ends = torch.tensor([0, tokens // 3, tokens], dtype=torch.int32).to(where)
        more |= {"cu_seqlens_q": ends, "cu_seqlens_k": ends}
    options = Options(
        order=case.order, is_causal=case.is_causal, scale=1.0, out_dtype=dtype, return_state=case.features
    )
    return Call(zeros(heads), zeros(key_heads), zeros(key_heads), **more, options=options), zeros(heads)


def run(call: Call, do: Tensor, arch: str, form: str, tiles: Tiles | None = None, *, backward: bool = True) -> None:
    """Launch both passes of a call, or one."""
    plan, has_state = Plan(form), call.options.return_state
    o, g, state = call.new_outputs()
    both_passes.forward(Launch(call, plan, arch, tiles), o, g, state if has_state else None)
    grads = OutputGrads(do, torch.zeros_like(g) if has_state else None, torch.zeros_like(state) if has_state else None)
    if backward:
        both_passes.backward(Launch(call, plan, arch, tiles), o, g, grads, InputGrads.empty(call))


def decode(dtype: torch.dtype, head_dim: int) -> None:
    """Launch a step of decoding that folds, with decays."""
    q, k, v = (torch.zeros(2, heads, 1, head_dim, dtype=dtype) for heads in (8, 2, 2))
    decay = torch.zeros(2, 2, 1)
    held = torch.zeros(2, 2, feature_count(head_dim, 2), head_dim + 1), torch.zeros(2, 2, 128, head_dim)
    recent = torch.zeros(2, 2, 128, head_dim + 1), torch.zeros(2, 2, 128)
    step = PreparedStep(q, k, v, *held, *recent, None, decay, order=2, scale=1.0, normalize="standardize")
    step(q, k, v, None, torch.ones(2, 1, dtype=torch.bool), decay, 100, 8)


def cost(built: Any, target: str) -> dict[str, Any]:
    """Return registers, bytes spilled, shared memory, and of each innermost loop with products on tensor cores a count.

    A count is [instructions, products, barriers].
    """
    found = {"shared": built.metadata.shared, "fits": built.metadata.shared <= SHARED.get(target, LESS_SHARED)}
    if target.startswith("gfx"):
        text = built.asm["amdgcn"]
        found["registers"] = _number(r"\.vgpr_count:\s+(\d+)", text)
        found["spills"] = 4 * _number(r"\.vgpr_spill_count:\s+(\d+)", text)
        found["loops"] = [list(loop) for loop in loops(text) if loop[1]]
        return found
    arch = TARGETS[target].arch
    with tempfile.TemporaryDirectory() as folder:
        cubin, ptx = os.path.join(folder, "x.cubin"), os.path.join(folder, "x.ptx")
        with open(cubin, "wb") as file:
            file.write(built.asm["cubin"])
        with open(ptx, "w") as file:
            file.write(built.asm["ptx"])
        usage = _said(knobs.nvidia.cuobjdump.path, "--dump-resource-usage", cubin)
        found["registers"] = _number(r"REG:(\d+)", usage)
        found["spills"] = 0
        if _number(r"STACK:(\d+)", usage):  # where registers are spilled to; how many bytes only ptxas says
            verbose = [get_ptxas(arch).path, "-v", f"--gpu-name={sm_arch_from_capability(arch)}", "-o", os.devnull, ptx]
            said = subprocess.run(verbose, capture_output=True, text=True, check=True).stderr
            found["spills"] = _number(r"(\d+) bytes spill stores", said)
        listing = _said(knobs.nvidia.nvdisasm.path, "-c", cubin)
    found["loops"] = [list(loop) for loop in loops(listing) if loop[1]]
    return found


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found is not None, pattern
    return int(found[1])


PRODUCTS = re.compile(r"HMMA|HGMMA|UTC\w*MMA|QGMMA|v_mfma")
BARRIERS = re.compile(r"BAR|s_barrier")


def loops(listing: str) -> Iterator[tuple[int, int, int]]:
    """Yield instructions, products and barriers of the innermost loops of a listing for NVIDIA or AMD."""
    instructions: list[str] = []
    labels: dict[str, int] = {}
    for line in listing.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+|\.LBB\d+_\d+):", line):
            labels[label[1]] = len(instructions)
        elif one := re.match(r"\s*/\*[0-9a-f]+\*/\s+(.*?);", line) or re.match(r"\t([a-z]+_\S+.*)", line):
            instructions.append(re.sub(r"^@!?U?P\w+\s+", "", one[1]))
    spans = []
    for last, text in enumerate(instructions):
        back = re.match(r"(?:BRA|s_c?branch)\S*.*?(\.L_x_\d+|\.LBB\d+_\d+)", text)
        if back and labels.get(back[1], len(instructions)) <= last:
            spans.append((labels[back[1]], last))
    for a, b in spans:
        if not any((c, d) != (a, b) and c >= a and d <= b for c, d in spans):
            names = Counter(text.split()[0] for text in instructions[a : b + 1])
            products, barriers = (
                sum(n for name, n in names.items() if kind.match(name)) for kind in (PRODUCTS, BARRIERS)
            )
            yield sum(names.values()), products, barriers


MAKES_NOTHING = re.compile(
    "view|reshape|transpose|permute|expand|slice|select|squeeze|detach|alias|as_strided|split|empty|narrow"
)
"""Operations that launch no kernel, by a part of their names."""


class Operations(TorchDispatchMode):
    """Counts PyTorch's own launches, and the bytes of tensors that are alive at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()
        self.peak = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, operation: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = operation(*args, **(kwargs or {}))
        made = [x for x in tree_leaves(found) if isinstance(x, Tensor)]
        name = operation._schema.name.removeprefix("aten::")
        if not MAKES_NOTHING.search(name):
            self.names[name] += 1
        before = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        self._alive = {key: (ref, n) for key, (ref, n) in self._alive.items() if not ref.expired()}
        for x in made:
            key = x.untyped_storage()._cdata
            if key not in before:
                self._alive[key] = StorageWeakRef(x.untyped_storage()), x.untyped_storage().nbytes()
        self.peak = max(self.peak, sum(n for _, n in self._alive.values()))
        return found


def counted(launched: list[Launched], case: Case, head_dim: int, **sizes: int) -> dict[str, Any]:
    """Return launches of each pass, with PyTorch's, kernels to compile, seconds of the host, and the peak of memory."""
    call, do = inputs(case, torch.bfloat16, head_dim, where="meta", **sizes)
    launched.clear()
    found: dict[str, Any] = {}
    o, g, state = triton.forward(call, Plan(case.form))
    grads = OutputGrads(do, *((g, state) if case.features else (None, None)))
    passes: dict[str, Callable[[], Any]] = {
        "forward": lambda: triton.forward(call, Plan(case.form)),
        "backward": lambda: triton.backward(call, Plan(case.form), o, g, grads),
    }
    for name, one_pass in passes.items():
        launched.clear()
        with Operations() as seen:
            result = one_pass()
        found[name] = {
            "launches": len(launched) + seen.names.total(),
            "operations": dict(seen.names),
            "variants": sorted({x.variant for x in launched}),
            "peak": seen.peak,
        }
        del result
        start = time.perf_counter()
        for _ in range(10):
            one_pass()
        found[name]["host"] = (time.perf_counter() - start) / 10
    return found | {"bytes": call.q.numel() * call.q.element_size()}


COUNTED: tuple[tuple[str, int, dict[str, int]], ...] = (
    ("plain", 64, {}),
    ("plain", 63, {"tokens": 2300}),
    ("plain", 63, {"tokens": 16384}),
    ("packed", 64, {}),
    ("plain", 128, {"tokens": 65536, "heads": 128}),
)
"""Calls whose launches are counted: a case, channels, and sizes."""


FLAGS = ("FORWARD", "QUERIES", "REVERSE", "DECAY", "HAS_IN", "DENSE", "STATE")


def lines(launched: list[Launched], arch: str) -> Iterator[dict[str, Any]]:
    """Yield what each compiled kernel costs."""
    for one in launched:
        if one.built is not None:
            flags = " ".join(flag for flag in FLAGS if one.constants.get(flag))
            yield {"kernel": one.name, "flags": flags} | cost(one.built, arch) | {"seconds": round(one.seconds, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+", choices=list(TARGETS))
    parser.add_argument("--head-dim", type=int, nargs="+", default=[64])
    parser.add_argument("--dtype", nargs="+", default=["bf16"], choices=list(DTYPES))
    parser.add_argument("--case", nargs="+", default=["plain", "all"], choices=[*CASES, "decode"])
    parser.add_argument("--kernel", nargs="+")
    parser.add_argument("--forward", action="store_true", help="the forward pass alone")
    parser.add_argument("--count", action="store_true", help="count launches and memory of some calls instead")
    parser.add_argument("--out", type=Path, help="add the results to a file of measurements; needs fastmax-lab")
    parser.add_argument("--tiles", default="{}", help="JSON of fields of Tiles to try instead of the table's")
    options = parser.parse_args()
    for target in options.targets:
        launched = install(target, compiles=not options.count, only=options.kernel)
        if options.count:
            for name, head_dim, sizes in COUNTED:
                found = counted(launched, CASES[name], head_dim, **sizes)
                print(json.dumps(found))
                if options.out is not None:
                    of = {"target": target, "head_dim": head_dim, "case": name} | sizes
                    passes = {
                        key: {k: v for k, v in found[key].items() if k != "variants"} for key in ("forward", "backward")
                    }
                    _record(options.out, of, passes | {"bytes": found["bytes"]})
            continue
        for dtype in options.dtype:
            for head_dim in options.head_dim:
                for case in options.case:
                    launched.clear()
                    if case == "decode":
                        decode(DTYPES[dtype], head_dim)
                    else:
                        call, do = inputs(CASES[case], DTYPES[dtype], head_dim)
                        tiles = _tiles(call, target, json.loads(options.tiles))
                        run(call, do, target, CASES[case].form, tiles, backward=not options.forward)
                    of = {"target": target, "dtype": dtype, "head_dim": head_dim, "case": case}
                    kernels = list(lines(launched, target))
                    for line in kernels:
                        print(json.dumps(of | line), flush=True)
                    if options.out is not None:
                        _record(options.out, of, {"kernels": kernels})


def _record(path: Path, of: dict[str, Any], values: dict[str, Any]) -> None:
    from fastmax_lab.measurements import Recorder

    Recorder("gpu-kernels", path).add("-".join(map(str, of.values())), of, values)


def _tiles(call: Call, arch: str, changed: dict[str, int]) -> Tiles | None:
    if not changed:
        return None
    from fastmax.backends.triton.cut import Cut
    from fastmax.plan import RULE

    assert padded(call.head_dim) == call.head_dim
    return Tiles(**Cut.of(call, RULE, arch).tiles.__dict__ | changed)


if __name__ == "__main__":
    main()
