"""Table of `fastmax-lab bench dropout`: what each mode costs."""

from typing import Any

from fastmax_lab.report.table import mask, milliseconds, table, times


def summary(measured: dict[str, Any]) -> str:
    """Ratios to the same call without dropout, medians of neighbouring measurements."""
    rows = []
    for cell in measured["cells"]:
        took = dict(cell["seconds"])
        none = took.pop("none")
        what = f"{cell['backend']}, {cell['head_dim']}, {mask(cell['is_causal'])}"
        title = what + (", with gradients" if cell["backward"] else "")
        rows.append([title, milliseconds(none["median"]), *(times(took[mode]["paired"]) for mode in took)])
    title = (
        f"Dropout {measured['rate']}, order {measured['order']}, N = {measured['tokens']:,}, {measured['heads']} heads, "
        "fp32: times over those without; medians, ratios of neighbouring measurements"
    )
    return f"{title}\n\n{table(['backend, D', 'without', *took], rows)}"
