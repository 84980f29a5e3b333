"""Tables of `fastmax-lab bench kernel`: shares of sgemm, ratios to softmax attention, and what the choice of form costs."""

from collections.abc import Sequence
from typing import Any

from fastmax_lab import _cells
from fastmax_lab._cells import Cell, sgemm_flops
from fastmax_lab.bench.kernel import THREADS
from fastmax_lab.measurements import Measurement
from fastmax_lab.report.table import milliseconds, passes, table, times

RULE_LIMIT = 1.25
"""Maximum ratio of the form that the rule picks to the other one."""


def summary(measured: Sequence[Measurement]) -> str:
    """Return one table per dtype, pass and order, and a line on the rule."""
    cells = [d.settings | d.values for d in measured if d.name != THREADS]
    parts = [
        f"Kernel: {cells[0]['level']}. Best of several rounds, contestants in turns; ratios are within a round's run. "
        "Paired is the share of sgemm as the median over rounds, each against the sgemm right before and after."
    ]
    groups: dict[tuple[str, bool, int], list[dict[str, Any]]] = {}
    for cell in cells:
        groups.setdefault((cell["dtype"], cell["backward"], cell["order"]), []).append(cell)
    for (dtype, backward, order), own in groups.items():
        parts.append(f"### {passes(backward)}, order {order}, {dtype}")
        header = [
            "N, D, heads",
            "native",
            "of sgemm",
            "paired",
            "of roofline",
            "vs sdpa",
            "vs chunked",
            "form",
            "other form",
        ]
        header += ["vs fp32"] if dtype != "float32" else []
        parts.append(table(header, [_row(cell) for cell in own]))
    return "\n\n".join([*parts, rule(cells), *(threads(d) for d in measured if d.name == THREADS)])


def threads(measured: Measurement) -> str:
    """Return the speedup of all threads over one."""
    best, s = {name: t["best"] for name, t in measured.values["seconds"].items()}, measured.settings
    shape = f"forward, order 2, {s['tokens']:,} tokens, D = {s['head_dim']}, {s['heads']} heads"
    return f"Threads: {s['threads']} are {times(best['one'] / best['all'])} as fast as one ({shape})."


def share_of_sgemm(cell: dict[str, Any]) -> float:
    """Return flops of the cheaper exact form at the native kernel's time, over those of sgemm in the same cell."""
    return _least_seconds_of_flops(cell) / float(cell["seconds"]["native"]["best"])


def paired_share_of_sgemm(cell: dict[str, Any]) -> float:
    """Return the same of neighbouring measurements, the median over rounds."""
    return _flops(cell) / sgemm_flops() / float(cell["seconds"]["native"]["paired"])


def share_of_roofline(cell: dict[str, Any]) -> float | None:
    """Return the larger of the flops at the rate of sgemm and the bytes of q, k, v, o at that of a copy, over the time."""
    if "copy" not in cell["seconds"] or cell["backward"]:
        return None
    item = 4 if cell["dtype"] == "float32" else 2
    moved = 4 * cell["tokens"] * cell["head_dim"] * cell["heads"] * item
    bandwidth = 2 * 4 * _cells.COPY / float(cell["seconds"]["copy"]["best"])
    least: float = max(_least_seconds_of_flops(cell), moved / bandwidth)
    return least / float(cell["seconds"]["native"]["best"])


def _least_seconds_of_flops(cell: dict[str, Any]) -> float:
    return _flops(cell) / (sgemm_flops() / float(cell["seconds"]["sgemm"]["best"]))


def _flops(cell: dict[str, Any]) -> float:
    shape = Cell.of(cell)
    return min(shape.dense_flops, shape.factorized_flops)


def rule(cells: list[dict[str, Any]]) -> str:
    """Return the largest ratio of the time of the form that the rule picks to that of the other one."""
    worst, where = 0.0, {}
    for cell in cells:
        forms = {name: cell["seconds"][name]["best"] for name in ("dense", "factorized") if name in cell["seconds"]}
        if len(forms) == 2 and forms[cell["form"]] / min(forms.values()) > worst:
            worst, where = forms[cell["form"]] / min(forms.values()), cell
    if not where:
        return "Rule: no cell has both forms."
    verdict = "holds" if worst <= RULE_LIMIT else "IS BROKEN"
    at = ", ".join(
        f"{name} {where[name]}" for name in ("tokens", "head_dim", "order", "is_causal", "backward", "dtype")
    )
    return f"Rule: the form picked takes at worst {worst:.2f}x as long as the other ({at}); the limit {RULE_LIMIT} {verdict}."


def _row(cell: dict[str, Any]) -> list[str]:
    s = {name: t["best"] for name, t in cell["seconds"].items()}
    forms = {name: s[name] for name in ("dense", "factorized") if name in s}
    picked = cell["form"]
    other = next((t for name, t in forms.items() if name != picked), None)
    roofline = share_of_roofline(cell)
    mask = " causal" if cell["is_causal"] else ""
    row = [
        f"{cell['tokens']:,}, {cell['head_dim']}, {cell['heads']}{mask}",
        milliseconds(s["native"]),
        f"{share_of_sgemm(cell):.2f}",
        f"{paired_share_of_sgemm(cell):.2f}",
        "-" if roofline is None else f"{roofline:.2f}",
        times(s["sdpa"] / s["native"] if "sdpa" in s else None),
        times(s["chunked"] / s["native"] if "chunked" in s else None),
        picked,
        times(other / forms[picked] if other and picked in forms else None),
    ]
    return row if cell["dtype"] == "float32" else [*row, times(s["float32"] / s["native"] if "float32" in s else None)]
