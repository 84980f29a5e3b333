"""Table of `fastmax-lab bench narrow`: softmax over Fastmax2, by the channels of queries and keys."""

from collections.abc import Sequence

from fastmax_lab.bench.narrow import SOFTMAX
from fastmax_lab.measurements import Measurement
from fastmax_lab.report.table import milliseconds, table, times


def summary(measured: Sequence[Measurement]) -> str:
    """Return a row for each width of queries and keys. Times and ratios are of the best rounds."""
    rows: dict[str, list[str]] = {}
    for d in measured:
        of, took = d.settings, d.values["seconds"]
        for name in (name for name in took if name != SOFTMAX):
            best = took[name]["best"]
            row = rows.setdefault(f"{of['tokens']:,}, {name} beside {of['value_dim']}", [])
            row += [milliseconds(best), times(took[SOFTMAX]["best"] / best)]
    header = ["N, channels", "forward", "softmax takes", "forward and backward", "softmax takes"]
    text = "Causal, order 2, fp32; softmax has as many channels as values have"
    return f"{text}\n\n{table(header, [[name, *row] for name, row in rows.items()])}"
