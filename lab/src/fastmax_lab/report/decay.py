"""Table of `fastmax-lab bench decay`: times with a decay over those without."""

from collections.abc import Sequence

from fastmax_lab.bench.decay import DECODING
from fastmax_lab.measurements import Measurement
from fastmax_lab.report.table import milliseconds, passes, table, times


def summary(measured: Sequence[Measurement]) -> str:
    """Return the tables. Ratios are medians of neighbouring measurements."""
    rows = []
    for d in measured:
        s, of = d.values["seconds"], d.settings
        if d.name == DECODING:
            name = f"a decoding step, {of['heads']} heads of {of['head_dim']}"
        else:
            name = f"{of['tokens']:,}, {of['head_dim']}, {of['heads']} heads, {passes(of['backward'])}"
        both = s["both ways"]["paired"] if "both ways" in s else None
        medians = [milliseconds(s[way]["median"]) for way in ("without", "with")]
        rows.append([name, *medians, times(s["with"]["paired"]), times(both)])
    title = "Forgetting: order 2, fp32, causal; medians, ratios of neighbouring measurements"
    return "\n\n".join([title, table(["N, D", "without", "with decay", "ratio", "both directions"], rows)])
