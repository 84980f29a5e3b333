"""Table of `fastmax-lab bench values`: times over those of normally distributed inputs."""

from collections.abc import Sequence

from fastmax_lab.bench.values import NORMAL
from fastmax_lab.measurements import Measurement
from fastmax_lab.report.table import milliseconds, table, times


def summary(measured: Sequence[Measurement]) -> str:
    """Return the table, a row for each kind of values. Ratios are medians of neighbouring measurements."""
    names = [f"{d.settings['attention']}, {d.settings['tokens']:,}, {d.settings['head_dim']}" for d in measured]
    took = [d.values["seconds"] for d in measured]
    rows = [[NORMAL, *(milliseconds(x[NORMAL]["median"]) for x in took)]]
    rows += [[kind, *(times(x[kind]["paired"]) for x in took)] for kind in took[0] if kind != NORMAL]
    return f"Causal, order 2, fp32, forward + backward\n\n{table(['values', *names], rows)}"
