"""Compile the kernels for GPUs that are not here, and read what they cost. Needs no driver: the triton wheel has the tools.

    python -m tests.backends.offline sm_80 sm_90 --head-dim 64 128 [--dtype bf16 fp32] [--order 2] [--kernel read] [--small]

One line of JSON per kernel. In a process of its own: under TRITON_INTERPRET nothing is compiled.
"""

import argparse
import json
import os
import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability
from triton.compiler import ASTSource

from fastmax.backends.triton.kernels.accumulate import accumulate
from fastmax.backends.triton.kernels.centre import centre
from fastmax.backends.triton.kernels.centre_keys import centre_keys
from fastmax.backends.triton.kernels.fold import fold
from fastmax.backends.triton.kernels.normalize import normalize
from fastmax.backends.triton.kernels.output_grads import output_grads
from fastmax.backends.triton.kernels.read import read
from fastmax.backends.triton.kernels.read_vjp import read_vjp
from fastmax.backends.triton.kernels.step import step
from fastmax.backends.triton.launch import rows_of
from fastmax.backends.triton.precision import products_of
from fastmax.backends.triton.states import Shape
from fastmax.backends.triton.tiles import Tiles, tiles_for
from fastmax.core import EPS

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "sm_120": GPUTarget("cuda", 120, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
SHARED = {"sm_80": 166912, "sm_90": 232448, "sm_100": 232448, "sm_120": 101376, "gfx942": 65536}
"""Bytes of shared memory that a block may have."""

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
INTEGERS = (
    "tokens", "tokens_y", "start", "length", "length_y", "per_sequence", "chunk", "key_heads", "heads", "count", "room",
    "features", "number",
)  # fmt: skip
TABLES = ("OWNER", "FIRST", "CHUNKS", "CU", "CU_Y")
PRODUCTS = ("X", "X_STATE", "Y", "S", "A_STATE")
"""Arguments in the dtype of the products; those below are in the dtype of the call, other pointers are fp32."""
INPUTS = ("V", "RAW", "DX", "OUT")


class Kernel(NamedTuple):
    name: str
    function: Any
    constants: dict[str, Any]
    inputs: tuple[str, ...]  # which arguments come in the dtype of the call
    warps: int = 4
    stages: int = 2
    products: tuple[str, ...] = PRODUCTS


def kernels(tiles: Tiles, head_dim: int, order: int, precision: str) -> list[Kernel]:
    """As `launch` launches them, with all features but forgetting, which costs in the dense part alone."""
    shape: dict[str, Any] = Shape(head_dim, head_dim, head_dim, head_dim, order, tiles.block).constants
    shape |= {"DVR": head_dim, "GROUPS": 1}
    shape |= {"PACKED": True, "MASKED": True, "DECAY": False, "PRECISION": precision, "HAS_IN": True}
    rows = shape | {"CAUSAL": True, "STATE": True, "DENSE": True}
    reads = rows | {"U": tiles.unroll, "BT": tiles.rows, "BS": tiles.columns}
    vjp: dict[str, Any] = rows | {"DR": head_dim, "U": tiles.vjp_unroll, "BT": tiles.vjp_rows, "BS": tiles.vjp_columns}
    vjp |= {"NORM": "standardize", "EPS": EPS, "SCALED": True}
    vjp_launch = tiles.vjp_warps, tiles.vjp_stages
    sums = {name: value for name, value in shape.items() if name not in ("DVR", "MASKED")}
    sums |= {"G": tiles.sums, "BT": tiles.tokens, "STORE": True, "HAS_OUT": True}
    return [
        Kernel("accumulate S", accumulate, sums | {"REVERSE": False}, (), tiles.sum_warps, tiles.stages),
        Kernel("read o", read, reads | {"REVERSE": False, "FORWARD": True}, ("A", *INPUTS), tiles.warps, tiles.stages),
        Kernel("read dv", read, reads | {"REVERSE": True, "FORWARD": False}, INPUTS, tiles.warps, tiles.stages),
        Kernel("read_vjp dq", read_vjp, vjp | {"REVERSE": False, "QUERIES": True}, ("A_Y", *INPUTS), *vjp_launch),
        Kernel("read_vjp dk", read_vjp, vjp | {"REVERSE": True, "QUERIES": False}, ("A", *INPUTS), *vjp_launch),
    ]  # fmt: skip


def small_kernels(head_dim: int, order: int, language: Any) -> list[Kernel]:
    """Those that multiply nothing on tensor cores."""
    rows = rows_of(head_dim)
    values = {"DVR": head_dim, "DV": head_dim, "BT": rows, "PACKED": True}
    token = {"D": head_dim, "DP": head_dim, "BV": 16, "ORDER": order, "DECAY": True}
    norm = {"NORM": "standardize", "EPS": EPS, "MASKED": True}
    means = {"DR": head_dim, "D": head_dim, "BT": rows, "SPREAD": True, "PACKED": True, "MASKED": True, "DT": language}
    grads = values | {
        "D": head_dim,
        "ORDER": order,
        "GROUPS": 1,
        "HAS_DO": True,
        "HAS_DG": True,
        "STATE": True,
        "DECAY": True,
    }
    one_step = token | norm | {"DV": head_dim, "G": 4, "GP": 4, "R": 128, "BR": 16, "SUMMED": True, "STRONGEST": -110.0}
    tokens, centred = {"DR": head_dim, "D": head_dim, "BT": rows, "SCALED": True}, ("K_HAT", "K_STATE", "V_STATE")
    return [
        Kernel("normalize", normalize, tokens | norm, ("X",), products=("OUT",)),
        Kernel("centre", centre, means, ()),
        Kernel("centre_keys", centre_keys, values | {"D": head_dim, "DECAY": True}, ("V",), products=centred),
        Kernel("output_grads", output_grads, grads, ("O", "DO"), products=("Q_HAT", "W", "W_STATE")),
        Kernel("step", step, one_step, ("Q", "K", "V", "OUT")),
        Kernel("fold", fold, token | {"COLUMNS": head_dim + 1}, ()),
    ]  # fmt: skip


def compiled(kernel: Kernel, dtype: str, products: torch.dtype, target: GPUTarget) -> Any:
    names = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
    own = dtype if products == DTYPES[dtype] else names[products]

    def kind(name: str) -> str:
        if name in kernel.constants:
            return "constexpr"
        if name in INTEGERS:
            return "i32"
        if name == "MASK" and kernel.function is step:
            return "*i1"
        if name in TABLES:
            return "*i32"
        if name == "scale":
            return "fp32"
        if name.islower():
            return "i64"  # a stride
        if name in kernel.inputs:
            return f"*{dtype}"
        return f"*{own}" if name in (*kernel.products, "A", "A_Y") else "*fp32"

    function = kernel.function
    signature = {name: kind(name) for name in function.arg_names}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, (name, kind_) in enumerate(signature.items())
        if kind_.startswith("*") or (kind_ == "i64" and name.endswith(("_b", "_h", "_n")))
    }
    source = ASTSource(fn=function, signature=signature, constexprs=kernel.constants, attrs=aligned)
    return triton.compile(source, target=target, options={"num_warps": kernel.warps, "num_stages": kernel.stages})


def cost(built: Any, target: str) -> dict[str, Any]:
    """Registers, bytes spilled, shared memory, instructions per product on tensor cores, from the compiled object alone."""
    found = {"shared": built.metadata.shared, "fits": built.metadata.shared <= SHARED[target]}
    if target.startswith("gfx"):
        text = built.asm["amdgcn"]
        number = {n: _number(rf"\.{n}:\s+(\d+)", text) for n in ("vgpr_count", "vgpr_spill_count")}
        products = len(re.findall("v_mfma", text))
        return found | {
            "registers": number["vgpr_count"],
            "spills": 4 * number["vgpr_spill_count"],
            "products": products,
        }
    arch = TARGETS[target].arch
    with tempfile.TemporaryDirectory() as folder:
        cubin, ptx = os.path.join(folder, "x.cubin"), os.path.join(folder, "x.ptx")
        with open(cubin, "wb") as file:
            file.write(built.asm["cubin"])
        with open(ptx, "w") as file:
            file.write(built.asm["ptx"])
        usage = subprocess.run(
            [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", cubin], capture_output=True, text=True, check=True
        ).stdout
        found["registers"] = _number(r"REG:(\d+)", usage)
        found["spills"] = 0
        if _number(r"STACK:(\d+)", usage):  # where registers are spilled to; how many bytes only ptxas says
            verbose = [get_ptxas(arch).path, "-v", f"--gpu-name={sm_arch_from_capability(arch)}", "-o", os.devnull, ptx]
            said = subprocess.run(verbose, capture_output=True, text=True, check=True).stderr
            found["spills"] = _number(r"(\d+) bytes spill stores", said)
        found["products"] = len(re.findall(r"mma\.sync|wgmma\.mma_async|tcgen05\.mma", built.asm["ptx"]))
        if arch < 100:
            listing = subprocess.run(
                [knobs.nvidia.nvdisasm.path, "-c", cubin], capture_output=True, text=True, check=True
            )
            found["loops"] = [f"{loop.total()}/{loop['product']}" for loop in loops(listing.stdout) if loop["product"]]
    return found


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found is not None, pattern
    return int(found[1])


def loops(listing: str) -> Iterator[Counter[str]]:
    """Instructions of the innermost loops of a listing of SASS, products on tensor cores counted apart."""
    instructions: list[str] = []
    labels: dict[str, int] = {}
    for line in listing.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(instructions)
        elif one := re.match(r"\s*/\*[0-9a-f]+\*/\s+(.*?);", line):
            instructions.append(one[1])
    spans = []
    for last, text in enumerate(instructions):
        back = re.search(r"BRA\S*.*?(\.L_x_\d+)", text)
        if back and labels.get(back[1], len(instructions)) <= last:
            spans.append((labels[back[1]], last))
    for a, b in spans:
        if not any((c, d) != (a, b) and c >= a and d <= b for c, d in spans):
            names = (re.sub(r"^@!?U?P\w+\s+", "", text).split()[0].split(".")[0] for text in instructions[a : b + 1])
            yield Counter("product" if name in ("HMMA", "HGMMA", "UTCHMMA", "QGMMA") else "other" for name in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+", choices=list(TARGETS))
    parser.add_argument("--head-dim", type=int, nargs="+", default=[64])
    parser.add_argument("--dtype", nargs="+", default=["bf16"], choices=list(DTYPES))
    parser.add_argument("--order", type=int, default=2)
    parser.add_argument("--kernel", nargs="+")
    parser.add_argument("--small", action="store_true", help="also the kernels without products on tensor cores")
    parser.add_argument("--tiles", default="{}", help="JSON of fields of Tiles to try instead of the table's")
    parser.add_argument(
        "--constants", default="{}", help="JSON of what kernels are compiled for, instead of all features"
    )
    options = parser.parse_args()
    given = json.loads(options.constants)
    for target in options.targets:
        for dtype in options.dtype:
            for head_dim in options.head_dim:
                products = products_of(*[DTYPES[dtype]] * 3, target)
                tiles = tiles_for(target, head_dim, head_dim, options.order, products.dtype)
                tiles = Tiles(**tiles.__dict__ | json.loads(options.tiles))
                every = kernels(tiles, head_dim, options.order, products.precision)
                every += small_kernels(head_dim, options.order, products.language) if options.small else []
                if options.kernel:
                    every = [one for one in every if one.name.startswith(tuple(options.kernel))]
                for one in every:
                    changed = {name: given[name] for name in one.constants.keys() & given.keys()}
                    kernel = one._replace(constants=one.constants | changed)
                    start = time.perf_counter()
                    built = compiled(kernel, dtype, products.dtype, TARGETS[target])
                    line = {"target": target, "dtype": dtype, "head_dim": head_dim, "kernel": kernel.name}
                    line |= cost(built, target) | {"seconds": round(time.perf_counter() - start, 1)}
                    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
