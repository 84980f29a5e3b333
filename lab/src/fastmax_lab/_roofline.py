"""The least time that a GPU could take, from its data sheet: a bound to read a measurement beside, not a measurement."""

from typing import NamedTuple

from fastmax_lab._cells import Cell


class Gpu(NamedTuple):
    """Dense bf16 products with sums in fp32, and memory."""

    tflops: float
    gigabytes_per_second: float


GPUS = {
    "A100": Gpu(312, 2039),
    "H100": Gpu(989, 3350),
    "H200": Gpu(989, 4800),
    "RTX 4090": Gpu(165, 1008),
    "MI300X": Gpu(1307, 5300),
}
"""By a part of the name that the driver gives; of several variants the fastest."""

FP32_SHARE = 1 / 6
"""tf32 has half the pace of bf16, and a product of fp32 is three of them."""


def known(name: str) -> Gpu | None:
    return next((gpu for part, gpu in GPUS.items() if part in name), None)


def flops(cell: Cell) -> float:
    """Return the flops of the cheaper exact form, the useful work of any kernel."""
    return min(cell.dense_flops, cell.factorized_flops)


def moved(cell: Cell) -> float:
    """Return the bytes of q, k, v and o; in the backward pass those again with as many gradients."""
    size = 2 if cell.dtype == "bfloat16" else 4
    return (4 if not cell.backward else 12) * cell.tokens * cell.heads * cell.head_dim * size


def least_seconds(cell: Cell, gpu: Gpu) -> float:
    pace = gpu.tflops * 1e12 * (1 if cell.dtype == "bfloat16" else FP32_SHARE)
    return max(flops(cell) / pace, moved(cell) / (gpu.gigabytes_per_second * 1e9))
