"""Table of `fastmax bench decode`: seconds per token."""

from typing import Any

from fastmax.report.table import milliseconds, table, times


def summary(measured: dict[str, Any]) -> str:
    """The table, and how flat the time per token is."""
    rows, steps = [], []
    for cell in measured["cells"]:
        s = {name: t["best"] for name, t in cell["seconds"].items()}
        steps.append(s["fastmax"])
        rows.append(
            [
                f"{cell['context']:,}",
                milliseconds(s["fastmax"]),
                milliseconds(s["softmax"]),
                times(s["softmax"] / s["fastmax"]),
                f"{s['copy'] / s['fastmax']:.2f}",
            ]
        )
    header = ["context", "fastmax", "softmax, cache", "speed-up", "of copy bandwidth"]
    flat = f"Slowest over fastest context: {max(steps) / min(steps):.2f}"
    title = f"A decoding step, {measured['heads']} heads of {measured['head_dim']}, order 2, fp32; best of the rounds"
    return "\n\n".join([title, table(header, rows), flat])
