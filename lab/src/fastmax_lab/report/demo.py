"""The two tables of `fastmax-lab demo`."""

from typing import Any

from fastmax_lab.report.table import mask, milliseconds, table, times


def summary(measured: dict[str, Any]) -> str:
    m = measured["machine"]
    names = list(measured["exact"][0]["errors"])
    exact = [
        [str(row["order"]), mask(row["is_causal"]), *(f"{row['errors'][name]:.1e}" for name in names)]
        for row in measured["exact"]
    ]
    growth = []
    for row in measured["growth"]:
        cells = [f"{row['tokens']:,}"]
        for kind in ("unmasked", "causal"):
            ours, theirs = (row[kind][name]["best"] for name in ("fastmax", "softmax"))
            cells += [milliseconds(ours), milliseconds(theirs), times(theirs / ours)]
        growth.append(cells)
    shape = f"{measured['heads']} heads of {measured['head_dim']}"
    return "\n\n".join(
        [
            f"fastmax {m['fastmax']}, torch {m['torch']}, {m['processor']}, {m['threads']} threads",
            "1. It is exact: the largest difference to the N x N matrix form in fp64, N = 1,000, D = 16",
            table(["order", "", *names], exact),
            f"2. It is linear: forward pass, order 2, {shape}, fp32",
            table(["N", "fastmax", "softmax", "speed-up", "causal: fastmax", "softmax", "speed-up"], growth),
        ]
    )
