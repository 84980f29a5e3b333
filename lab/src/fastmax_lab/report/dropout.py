"""Table of `fastmax-lab bench dropout`: what each mode costs."""

from collections.abc import Sequence

from fastmax_lab.measurements import Measurement
from fastmax_lab.report.table import mask, milliseconds, table, times


def summary(measured: Sequence[Measurement]) -> str:
    """Return ratios to the same call without dropout, medians of neighbouring measurements."""
    rows = []
    for cell in (d.settings | d.values for d in measured):
        took = dict(cell["seconds"])
        none = took.pop("none")
        what = f"{cell['backend']}, {cell['head_dim']}, {mask(cell['is_causal'])}"
        title = what + (", with gradients" if cell["backward"] else "")
        rows.append([title, milliseconds(none["median"]), *(times(took[mode]["paired"]) for mode in took)])
    title = (
        f"Dropout {cell['rate']}, order {cell['order']}, N = {cell['tokens']:,}, {cell['heads']} heads, "
        "fp32: times over those without; medians, ratios of neighbouring measurements"
    )
    return f"{title}\n\n{table(['backend, D', 'without', *took], rows)}"
