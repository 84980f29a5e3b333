"""Scaling: the growth of the memory with N."""

from itertools import product
from statistics import median

from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page.parts import Chart, Claim, Series, Table, untested
from fastmax_lab.report.page.sections.scaling_cells import (
    LONGEST,
    ORDERS,
    SOFTMAX,
    exponent,
    growth_verdict,
    mask_name,
)

MEMORY = ("Abstract, Conclusion", "The memory of attention falls from O(N²) to O(N).")


def memory_chart(measurement: Measurement) -> Chart:
    d = measurement.settings["head_dim"]
    rows = [row for row in measurement.values["memory"] if not row["is_causal"]]
    series = [
        Series(
            name,
            tuple(row["tokens"] for row in rows if row["contestant"] == name),
            tuple((row["peak"] - row["before"]) / 2**20 for row in rows if row["contestant"] == name),
        )
        for name in dict.fromkeys(row["contestant"] for row in rows)
    ]
    return Chart(
        f"scaling-memory-d{d}", f"D = {d}", "tokens N", "peak memory, MiB", tuple(series), True, True, 2, small=True
    )


def memory_table(measurements: list[Measurement]) -> Table:
    rows = [
        (d.settings["head_dim"], mask_name(row["is_causal"]), row["contestant"], row["tokens"],
         (row["peak"] - row["before"]) / 2**20)
        for d in measurements for row in d.values["memory"]
    ]  # fmt: skip
    return Table(
        "scaling-memory",
        "Peak memory above that before the inputs, forward + backward",
        ("D", "mask", "contestant", "N", "MiB"),
        tuple(rows),
        ("", "", "", ",", ",.1f"),
    )


def memory_claim(measurements: list[Measurement]) -> Claim:
    table = memory_growth(measurements)
    ours, theirs = ([row[-1] for row in table.rows if row[2] in names] for names in (ORDERS, ("vanilla",)))
    if not ours or not theirs:
        return untested(*MEMORY, "too few lengths were measured to see how memory grows")
    number = f"exponent of N: {median(ours):.2f} against {median(theirs):.2f}, medians"
    notes = ("Judged against the plain formula; the table has PyTorch's kernel, too.",)
    return Claim(*MEMORY, growth_verdict(ours, theirs), number, notes, table.name)


def memory_growth(measurements: list[Measurement]) -> Table:
    rows = [
        (d.settings["head_dim"], mask_name(is_causal), name, *exponent(sorted(peaks.items())[-LONGEST:]))
        for d, is_causal in product(measurements, (False, True))
        for name, peaks in _peaks(d, is_causal).items()
        if len(peaks) > 1
    ]
    return Table(
        "scaling-memory-growth",
        "Growth of the memory: the exponent of N over the longest that were measured",
        ("D", "mask", "contestant", "from N", "to N", "exponent"),
        tuple(rows),
        ("", "", "", ",", ",", ".2f"),
    )


def memory_ratios(measurements: list[Measurement]) -> Table:
    rows = []
    for theirs, d in product(SOFTMAX, measurements):
        peaks = _peaks(d, is_causal=False)
        n = max(peaks.get(theirs, {}).keys() & peaks.get("fastmax2", {}).keys(), default=None)
        if n is not None:
            rows.append((theirs, d.settings["head_dim"], n, peaks[theirs][n] / peaks["fastmax2"][n]))
    return Table(
        "scaling-memory-ratio",
        "Memory of softmax over that of Fastmax2, unmasked, at the longest N of both",
        ("contestant", "D", "N", "times"),
        tuple(rows),
        ("", "", ",", ".2f"),
    )


def _peaks(measurement: Measurement, is_causal: bool) -> dict[str, dict[int, int]]:
    """Return the bytes by contestant and N, where there were any to be seen."""
    found: dict[str, dict[int, int]] = {}
    for row in measurement.values["memory"]:
        if row["is_causal"] == is_causal and row["peak"] > row["before"]:
            found.setdefault(row["contestant"], {})[row["tokens"]] = row["peak"] - row["before"]
    return found
