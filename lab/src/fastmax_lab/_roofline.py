"""Times of GPUs from their data sheets: the least that a call could take, and estimates from counts. Not measurements."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from fastmax_lab._cells import Cell


class Gpu(NamedTuple):
    """Dense bf16 products with sums in fp32, memory, and products of fp32."""

    tflops: float
    gigabytes_per_second: float
    fp32_tflops: float


GPUS = {
    "A100": Gpu(312, 2039, 19.5),
    "H100": Gpu(989, 3350, 67),
    "H200": Gpu(989, 4800, 67),
    "RTX 4090": Gpu(165, 1008, 82.6),
    "MI300X": Gpu(1307, 5300, 163.4),
}
"""GPUs by a part of the name that the driver gives; of several variants the fastest."""

LAUNCH, MEMORY_SHARE, PEAK_SHARE = 5e-6, 0.8, 0.5
"""Assumptions of an estimate: seconds per launch, and the shares of bandwidth and peak that library calls reach."""

FLASH = {
    ("A100", "FA-2"): {64: (175e12, 171e12), 128: (195e12, 189e12)},
    ("H100", "FA-3"): {64: (473e12, 440e12), 128: (616e12, 575e12)},
}
"""Useful FLOP/s, forward and forward + backward, causal, long sequences: read off the charts of the two papers."""

FLEX_SHARE = 0.8
"""The assumed pace of FlexAttention, over that of FlashAttention."""

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


def estimate(counts: Mapping[str, float], cell: Cell, gpu: str) -> float | None:
    """Return the time of counts on a GPU, FlexAttention included, or None where FlashAttention has no published pace."""
    forward, both = (flash_seconds(replace(cell, backward=backward), gpu) for backward in (False, True))
    if not counts["flex_forward"]:
        return estimated_seconds(counts, GPUS[gpu])
    if forward is None or both is None:
        return None
    fused = counts["flex_forward"] * forward + counts["flex_backward"] * (both - forward)
    return estimated_seconds(counts, GPUS[gpu]) + fused / FLEX_SHARE


def estimated_seconds(counts: Mapping[str, float], gpu: Gpu) -> float:
    """Return the time of counted launches, bytes and flops on a GPU where nothing overlaps."""
    products = counts["half_flops"] / (gpu.tflops * 1e12) + counts["fp32_flops"] / (gpu.fp32_tflops * 1e12)
    memory = counts["bytes"] / (MEMORY_SHARE * gpu.gigabytes_per_second * 1e9)
    return counts["launches"] * LAUNCH + memory + products / PEAK_SHARE


def flash_seconds(cell: Cell, gpu: str) -> float | None:
    """Return the time of FlashAttention at its published pace, or None where there is none for this GPU or head."""
    pace = next((paces.get(cell.head_dim) for (name, _), paces in FLASH.items() if name == gpu), None)
    return None if pace is None or not cell.is_causal else cell.dense_flops / pace[cell.backward]
