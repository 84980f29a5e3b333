"""A training step of Image by the encoder's linear layers: torch's own, those given to oneDNN, and these in bf16."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from fastmax_lab.bench import lra as bench
from fastmax_lab.bench.lra import LayerCell
from fastmax_lab.bench.measure import interleave, seconds
from fastmax_lab.experiments.items import Item, Workspace
from fastmax_lab.lra.layers import QuickLinear
from fastmax_lab.measurements import Measurement, slug

NAME = "lra-layers"
ATTENTIONS = ("fastmax1", "fastmax2", "softmax")
LAYERS = ("torch", "oneDNN", "oneDNN, bf16")
KINDS = {
    "products of the encoder": ("convolution", "aten::mm", "aten::addmm"),
    "attention": ("fastmax", "scaled_dot_product", "flash"),
    "normalization and activation": ("layer_norm", "gelu"),
    "sums and copies": ("aten::add", "aten::copy_", "aten::cat", "aten::sum", "aten::mul", "aten::div"),
    "optimizer": ("adamw", "AdamW", "clamp"),
}
"""Words in the names of operations."""
PROFILED = 5
"""Steps."""
CELL = LayerCell("image", 16, 0.0)


def items(budget: str, found: Sequence[Measurement]) -> list[Item]:  # noqa: ARG001
    if budget == "quick":
        return [item(CELL, rounds=1, threads=1)]
    return [item(CELL, rounds=5, threads=threads) for threads in (1, 2)]


def item(cell: LayerCell, *, rounds: int, threads: int) -> Item:
    settings = {"task": cell.task, "batch": cell.batch, "dropout": 0.0, "attention_dropout": cell.attention_dropout}
    settings |= {"attentions": ATTENTIONS, "layers": LAYERS, "rounds": rounds, "threads": threads, "seed": 0}

    def measure(workspace: Workspace) -> dict[str, Any]:
        workspace.show(0.0, "time")
        steps = {f"{name}; {kind}": training_step(cell, name, kind) for name in ATTENTIONS for kind in LAYERS}
        timings = interleave(steps, rounds=rounds, least_seconds=0.0)
        return {"seconds": seconds(timings), "shares": {name: shares(steps[f"{name}; oneDNN"]) for name in ATTENTIONS}}

    return Item(NAME, slug(cell.task, f"threads{threads}"), settings, measure, cost=20.0, threads=threads)


def shares(step: Callable[[], object]) -> dict[str, float]:
    """Return the shares of a step's time that its operations take, by kind."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(PROFILED):
            step()
    found = dict.fromkeys([*KINDS, "rest"], 0.0)
    for event in profile.key_averages():
        kind = next((kind for kind, names in KINDS.items() if any(name in event.key for name in names)), "rest")
        found[kind] += event.self_cpu_time_total
    total = sum(found.values())
    return {kind: taken / total for kind, taken in found.items()}


def training_step(cell: LayerCell, attention: str, kind: str) -> Callable[[], object]:
    """Return a step without dropout, as in the trainings of the `cpu` budget, with the layers of that kind."""
    run = bench.training_step(cell, attention, dropout=0.0, prepare=_torch_layers if kind == "torch" else None)
    if not kind.endswith("bf16"):
        return run

    def in_bf16() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            run()

    return in_bf16


def _torch_layers(model: nn.Module) -> None:
    """Give the linear layers of a model back to torch."""
    for layer in model.modules():
        if isinstance(layer, QuickLinear):
            layer.__class__ = nn.Linear  # type: ignore[assignment]
