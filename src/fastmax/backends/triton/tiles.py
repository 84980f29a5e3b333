"""The tiles of the kernels by architecture, channels and dtype: one table without autotuning.

`fastmax-lab tune` prints a better row if it finds one; docs/gpu.md lists what each row costs in registers and shared memory.
"""

from dataclasses import dataclass, replace

import torch

from fastmax.plan import Plan


@dataclass(frozen=True)
class Tiles:
    """Sizes are powers of two. `chunk` is a multiple of every tile of tokens."""

    chunk: int
    """tokens of a causal chunk: between two states that are stored; 16 D, as on an A100 the traffic of a state then takes as
    long as the dense part (by arithmetic with 1237 tokens at D = 64, 2250 at 128)"""
    block: int = 16
    """channels of a block"""
    sums: int = 16
    """accumulate: channels m of a pair of blocks in one program, which so has sums * block rows"""
    tokens: int = 64
    """accumulate: tokens of a step"""
    unroll: int = 2
    """read: channels m of a step"""
    rows: int = 128
    """read: rows of a program"""
    columns: int = 64
    """read: columns of a step of the dense form"""
    vjp_unroll: int = 1
    """read_vjp: channels m of a step"""
    vjp_rows: int = 128
    vjp_columns: int = 64
    warps: int = 4
    sum_warps: int = 8
    vjp_warps: int = 4
    stages: int = 2
    vjp_stages: int = 2

    @property
    def longest(self) -> int:
        return max(self.tokens, self.rows, self.columns, self.vjp_rows, self.vjp_columns)


def padded(channels: int) -> int:
    """Return the channels padded to a power of two, at least 16, which tensor cores take."""
    return max(16, 1 << (channels - 1).bit_length())


def tiles_for(arch: str, head_dim: int, value_dim: int, order: int, dtype: torch.dtype) -> Tiles:
    """Return the tiles of an architecture such as "sm_80" or "gfx942", for padded dimensions and a dtype of products."""
    width = max(head_dim, value_dim)
    large, amd = width >= 64, arch.startswith("gfx")
    found = Tiles(
        chunk=128 if order == 1 else 16 * width,
        block=min(head_dim, 32),
        sums=16 if width == 16 else 8 if width <= 64 else 4,
        unroll=4 if width <= 32 else 2,
        vjp_unroll=4 if width <= 32 else 2 if width == 64 else 1,
        warps=8 if large else 4,
        vjp_warps=8 if large else 4,
    )
    if width != 64 or amd:  # else registers would be spilled
        found = replace(found, vjp_rows=64, vjp_columns=32)
    if (amd and width == 64) or (width == 128 and multiplies_by_warps(arch)):  # the same
        found = replace(found, columns=32)
    if width == 32 or (width == 16 and arch.startswith("sm_10")):  # the same
        found = replace(found, rows=64)
    if width == 16 and order == 2 and multiplies_by_warps(arch):  # so little of it that a warp has to do more
        found = replace(found, unroll=8, columns=32, warps=2, sum_warps=1, vjp_unroll=8, vjp_rows=128, vjp_warps=2)
    if arch == "sm_90" and width == 128:  # with four, 39 instructions per product instead of 24
        found = replace(found, sums=8)
    if amd:  # eight would take twice as many instructions per product
        found = replace(found, sum_warps=4)
    if amd and width == 16:  # with four warps, two barriers per product
        found = replace(found, unroll=8, rows=32, warps=1, vjp_warps=1)
    if amd and width == 128:  # which has 64 KB of shared memory
        found = replace(found, rows=64, columns=32, stages=1, vjp_rows=32, vjp_stages=1, warps=4, vjp_warps=4)
    if dtype != torch.bfloat16:  # of fp32, products of which are three
        found = replace(found, sums=min(4, found.sums), tokens=32, rows=64, columns=32, vjp_rows=32, vjp_columns=32)
        found = replace(
            found, unroll=2, vjp_unroll=1, sum_warps=8, warps=max(4, found.warps), vjp_warps=max(4, found.vjp_warps)
        )
    return found


def multiplies_by_warps(arch: str) -> bool:
    """Return True if a single warp makes a product (mma.sync), not four of them together (wgmma, tcgen05)."""
    return arch.startswith(("sm_8", "sm_12"))


def planned(tiles: Tiles, plan: Plan) -> Tiles:
    """Return the tiles with `chunk` and `dense_tile` of the plan, rounded up to what the kernels take."""
    if plan.dense_tile is not None:
        tile = padded(plan.dense_tile)
        names = ("tokens", "rows", "columns", "vjp_rows", "vjp_columns")
        tiles = replace(tiles, **{name: min(tile, getattr(tiles, name)) for name in names})
    chunk = tiles.chunk if plan.chunk is None else plan.chunk
    return replace(tiles, chunk=-(-max(chunk, 1) // tiles.longest) * tiles.longest)
