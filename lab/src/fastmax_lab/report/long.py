"""Table of `fastmax-lab bench long`: time, memory and precision of one long sequence."""

from collections.abc import Sequence

from fastmax_lab.measurements import Measurement
from fastmax_lab.report.table import table


def summary(measured: Sequence[Measurement]) -> str:
    found = measured[-1].settings | measured[-1].values
    (quarter, whole), (short, long), used = (found[name] for name in ("tokens", "seconds", "memory"))
    share = (used["peak"] - used["before"]) / used["tensors"]
    rows = [
        [f"forward + backward, N = {whole:,}", f"{long:.1f} s"],
        [f"the same, N = {quarter:,}", f"{short:.1f} s"],
        ["ratio of the two", f"{long / short:.2f}"],
        ["peak memory, in (q, k, v, o, do, dq, dk, dv)", f"{share:.2f}"],
        [f"relative error of the last {found['last']:,} outputs, fp32 against fp64", f"{found['error']:.1e}"],
    ]
    return f"One head, causal, order 2, D = 64, fp32\n\n{table(['', 'measured'], rows)}"
