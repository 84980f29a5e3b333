"""Tables of `fastmax-lab bench distributed`: bytes and time of processes that share a sequence, and the cost model."""

from collections.abc import Sequence
from typing import Any

from fastmax_lab.bench.distributed import ON_PAPER
from fastmax_lab.measurements import Measurement
from fastmax_lab.report.table import milliseconds, table


def summary(measured: Sequence[Measurement]) -> str:
    """Return the tables, first measured ones, then computed ones."""
    model = next(d.values for d in measured if d.name == ON_PAPER)
    cells = [d.settings | d.values for d in measured if d.name != ON_PAPER]
    layer = model["layer"]
    measured_title = (
        f"Measured: causal, order {cells[0]['order']}, fp32, {cells[0]['heads']} heads of {cells[0]['head_dim']}, forward + "
        "backward, one thread per process on one machine; bytes that a process receives per layer, a ring's computed (bf16)"
    )
    model_title = (
        f"On paper: one causal layer forward, {layer['heads']} query heads on {layer['key_heads']} key heads of "
        f"{layer['head_dim']}, order {layer['order']}; a state of all key heads is {size(model['state_bytes'])}"
    )
    crossing_title = "Bytes received per layer, and from how many tokens on a ring receives more"
    return "\n\n".join(
        [measured_title, _measured(cells), crossing_title, _crossings(model["crossings"]), model_title]
        + [f"{machine['name']}\n\n{_on_paper(model['cells'], machine['name'])}" for machine in model["machines"]]
    )


def _measured(cells: list[dict[str, Any]]) -> str:
    rows = []
    for cell in cells:
        rows.append(
            [
                f"{cell['world']}",
                f"{cell['tokens']:,}",
                milliseconds(cell["seconds"]),
                milliseconds(cell["processor_seconds"] * cell["world"]),
                size(cell["received"]),
                f"{cell['received'] / cell['tokens']:,.1f}",
                size(cell["ring_received"]),
            ]
        )
    header = ["processes", "tokens", "time", "processor time of all", "received", "bytes per token", "ring"]
    return table(header, rows)


def _crossings(crossings: list[dict[str, Any]]) -> str:
    rows = [[f"{c['world']:,}", size(c["received"]), f"{c['crossover']:,}"] for c in crossings]
    return table(["ranks", "received", "a ring receives more from"], rows)


def _on_paper(cells: list[dict[str, Any]], machine: str) -> str:
    rows = []
    for cell in cells:
        if cell["machine"] == machine:
            s = cell["seconds"]
            names = ("compute", "exchange", "ring compute", "ring exchange")
            rows.append([f"{cell['tokens']:,}, {cell['world']:,}", *(duration(s[name]) for name in names)])
    return table(["N, ranks", "compute", "exchange", "ring: compute", "ring: exchange"], rows)


def duration(seconds: float) -> str:
    if seconds == 0:
        return "0"
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("s", 1.0), ("ms", 1e-3)):
        if seconds >= length:
            count = seconds / length
            return f"{count:,.0f} {unit}" if count >= 100 else f"{count:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def size(count: float) -> str:
    for unit, length in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= length:
            return f"{count / length:,.3g} {unit}"
    return f"{count:,.0f} B"
