"""Table of `fastmax bench dropout`: what each mode costs."""

from typing import Any

from fastmax.report.table import mask, milliseconds, table, times


def summary(measured: dict[str, Any]) -> str:
    """Against the same backend without dropout."""
    rows = []
    for cell in measured["cells"]:
        best = {name: t["best"] for name, t in cell["seconds"].items()}
        for name, t in best.items():
            rows.append([mask(cell["is_causal"]), name, milliseconds(t), times(t / best["none"])])
    _, heads, tokens, head_dim = measured["shape"]
    title = (
        f"Dropout {measured['rate']}, forward + backward, order {measured['order']}, N = {tokens:,}, "
        f"{heads} heads of {head_dim}, fp32, chunked backend"
    )
    return f"{title}\n\n{table(['', 'mode', 'time', 'of none'], rows)}"
