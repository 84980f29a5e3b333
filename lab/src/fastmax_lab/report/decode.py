"""Table of `fastmax-lab bench decode`: seconds per token."""

from collections.abc import Sequence

from fastmax_lab.measurements import Measurement
from fastmax_lab.report.table import milliseconds, table, times


def summary(measured: Sequence[Measurement]) -> str:
    """Return the table, how flat the time per token is, and the context from which a state takes less of it than a cache."""
    rows, steps = [], []
    for cell in (d.settings | d.values for d in measured):
        s = {name: t["median"] for name, t in cell["seconds"].items()}
        if cell["batch"] == 1:
            steps.append((cell["context"], cell["seconds"]["fastmax"]["best"], s["softmax"] / s["fastmax"]))
        rows.append(
            [
                f"{cell['batch']}",
                f"{cell['context']:,}",
                milliseconds(s["fastmax"]),
                milliseconds(s["softmax"]),
                times(s["softmax"] / s["fastmax"]),
                f"{s['copy'] / s['fastmax']:.2f}",
            ]
        )
    header = ["sequences", "context", "fastmax", "softmax, cache", "speed-up", "of copy bandwidth"]
    best = [time for _, time, _ in steps]
    flat = f"Slowest over fastest context of one sequence, best of the rounds: {max(best) / min(best):.2f}."
    slower = max((context for context, _, speed_up in steps if speed_up < 1), default=0)
    ahead = min((context for context, _, _ in steps if context > slower), default=None)
    wins = (
        f"A state is faster than a cache from {ahead:,} tokens on."
        if ahead
        else "A cache is faster at every context here."
    )
    title = f"A decoding step, {cell['heads']} heads of {cell['head_dim']}, order 2, fp32; medians of the rounds"
    return "\n\n".join([title, table(header, rows), f"{flat} {wins}"])
