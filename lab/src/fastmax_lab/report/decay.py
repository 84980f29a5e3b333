"""Table of `fastmax-lab bench decay`: times with a decay over those without."""

from typing import Any

from fastmax_lab.report.table import milliseconds, table, times


def summary(measured: dict[str, Any]) -> str:
    """Ratios are medians of neighbouring measurements."""
    rows = []
    for cell in measured["cells"]:
        s = cell["seconds"]
        rows.append(
            [
                f"{cell['tokens']:,}, {cell['head_dim']}{', with gradients' if cell['backward'] else ''}",
                milliseconds(s["without"]["median"]),
                milliseconds(s["with"]["median"]),
                times(s["with"]["paired"]),
                times(s["both ways"]["paired"]),
            ]
        )
    step = measured["step"]
    rows.append(
        [
            f"a decoding step, {measured['step_heads']} heads of {measured['step_head_dim']}",
            milliseconds(step["without"]["median"]),
            milliseconds(step["with"]["median"]),
            times(step["with"]["paired"]),
            "-",
        ]
    )
    title = (
        f"Forgetting: order 2, fp32, causal, {measured['heads']} heads; medians, ratios of neighbouring measurements"
    )
    return "\n\n".join([title, table(["N, D", "without", "with decay", "ratio", "both directions"], rows)])
