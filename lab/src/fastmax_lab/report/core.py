"""Tables of `fastmax-lab bench core`: growth of memory and time, and the paper's literal form."""

from collections.abc import Sequence

from fastmax_lab.measurements import Measurement
from fastmax_lab.report.table import mask, milliseconds, table, times


def summary(measured: Sequence[Measurement]) -> str:
    """Return the three tables."""
    rows = {kind: [d for d in measured if d.settings["measured"] == kind] for kind in ("memory", "time", "literal")}
    memory: list[list[str]] = []
    before: dict[str, int] = {}
    for m in (d.settings | d.values for d in rows["memory"]):
        used = m["peak"] - m["before"]
        growth = used / before[m["backend"]] if before.get(m["backend"]) else None
        before[m["backend"]] = used
        memory.append(
            [m["backend"], f"{m['tokens']:,}", f"{used / 2**20:,.0f} MiB", f"{used / m['tensors']:.2f}", times(growth)]
        )
    time: list[list[str]] = []
    last: dict[tuple[str, bool, str], float] = {}
    for m in (d.settings | d.values for d in rows["time"]):
        row = [f"{m['backend']}, {mask(m['is_causal'])}", f"{m['tokens']:,}"]
        for name, t in m["seconds"].items():
            key = (m["backend"], m["is_causal"], name)
            row += [milliseconds(t["best"]), times(t["best"] / last[key] if key in last else None)]
            last[key] = t["best"]
        time.append(row)
    literal = []
    for m in (d.settings | d.values for d in rows["literal"]):
        base = m["seconds"]["core.py"]["best"]
        for name, t in m["seconds"].items():
            literal.append([mask(m["is_causal"]), name, milliseconds(t["best"]), times(base / t["best"])])
    return "\n\n".join(
        [
            "Peak memory of forward + backward above that of the idle process, its tensors (q, k, v, o, do, dq, dk, dv) "
            "included: one head, D = 64, order 2, causal, fp32",
            table(["backend", "N", "peak", "in tensors", "per doubling"], memory),
            "Time: one head, D = 64, order 2, fp32",
            table(["", "N", "forward", "per doubling", "with backward", "per doubling"], time),
            "Against the paper's literal form (core.py): N = 4,096, D = 32, order 2, forward",
            table(["", "form", "time", "speed-up"], literal),
        ]
    )
