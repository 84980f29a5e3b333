"""Table and picture of `fastmax-lab bench generate`: time and memory of a token against the length of what came before."""

from collections.abc import Sequence
from os import PathLike
from typing import Any

from fastmax_lab.measurements import Measurement
from fastmax_lab.report.table import milliseconds, table, times


def summary(measured: Sequence[Measurement]) -> str:
    """Return the table, how flat the time is, and by how much a process grows."""
    rows, cells = [], _cells(measured)
    for cell in cells:
        s = {name: t["best"] for name, t in cell["seconds"].items()}
        rows.append(
            [
                f"{cell['context']:,}",
                *(milliseconds(s[name]) for name in ("fastmax", "softmax")),
                times(s["softmax"] / s["fastmax"]),
                *(f"{cell['cache_bytes'][name] / 1e6:.1f}" for name in ("fastmax", "softmax")),
                *(f"{cell['resident_bytes'][name] / 1e6:.0f}" for name in ("fastmax", "softmax")),
            ]
        )
    header = ["context", "fastmax", "softmax", "speed-up", "cache, MB", "softmax", "process, MB", "softmax"]
    steps = [cell["seconds"]["fastmax"]["best"] for cell in cells]
    first, last = cells[0]["context"], cells[-1]["context"]
    grown = {layers: x / 1e6 for layers, x in _growth_by_layers(measured).items()}
    told = ", ".join(f"{x:.1f} MB with {layers} layer{'s' * (layers > 1)}" for layers, x in grown.items())
    lines = [
        f"Slowest over fastest context: {max(steps) / min(steps):.2f}",
        f"From {first:,} to {last:,} tokens the process grows by {growth(measured, 'softmax') / 1e6:.0f} MB with keys and "
        f"values, with FastmaxCache by {told}: {growth_per_layer(measured) / 1e6:.2f} MB per added layer",
    ]
    title = (
        f"A token of generation, {cells[0]['layers']} layers, {cells[0]['heads']} heads ({cells[0]['kv_heads']} of keys) of "
        f"{cells[0]['head_dim']}, fp32; best of the rounds"
    )
    return "\n\n".join([title, table(header, rows), "\n".join(lines)])


def _cells(measured: Sequence[Measurement]) -> list[dict[str, Any]]:
    return [d.settings | d.values for d in measured if "context" in d.settings]


def _growth_by_layers(measured: Sequence[Measurement]) -> dict[int, float]:
    found = next(d.values["growth_by_layers"] for d in measured if "growth_by_layers" in d.values)
    return {int(layers): grown for layers, grown in found.items()}


def growth(measured: Sequence[Measurement], name: str) -> float:
    """Return the bytes that the process grows, from the first context to the last: layers, and generate()'s ids and masks."""
    first, last = (_cells(measured)[i]["resident_bytes"][name] for i in (0, -1))
    return float(last - first)


def growth_per_layer(measured: Sequence[Measurement]) -> float:
    """Return the bytes that one more layer grows more: the ids and masks of generate() do not depend on layers."""
    grown = _growth_by_layers(measured)
    few, many = min(grown), max(grown)
    return float(grown[many] - grown[few]) / (many - few)


def draw(measured: Sequence[Measurement], path: str | PathLike[str]) -> None:
    """Draw two panels, time and memory (extra "report")."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    time, memory = figure.subplots(1, 2)
    cells = _cells(measured)
    contexts = [cell["context"] for cell in cells]
    for name, label, color in (
        ("fastmax", "FastmaxCache", "tab:blue"),
        ("softmax", "keys and values (SDPA)", "tab:orange"),
    ):
        best = [cell["seconds"][name]["best"] * 1e3 for cell in cells]
        time.plot(contexts, best, "o-", color=color, label=label)
        sizes = [cell["cache_bytes"][name] / 1e6 for cell in cells]
        memory.plot(contexts, sizes, "o-", color=color, label=label)
    for axes, title, unit in ((time, "time of a token", "ms"), (memory, "memory of the cache", "MB")):
        axes.set(title=title, ylabel=unit, xlabel="tokens before it", xscale="log", yscale="log")
        axes.set_xticks(contexts, [f"{n // 1024}k" for n in contexts])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)
