"""Scaling: the growth of the memory with N."""

from itertools import product

from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page.parts import Chart, Claim, Finding, Series, Table, untested
from fastmax_lab.report.page.sections.scaling_cells import (
    LONGEST,
    ORDERS,
    SOFTMAX,
    exponent,
    growth_verdict,
    mask_name,
    spread,
)
from fastmax_lab.report.page.words import listed, times

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
    return Chart(f"scaling-memory-d{d}", f"D = {d}", "tokens N", "peak memory, MiB", tuple(series), True, True, 2)


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
    grown: dict[str, list[float]] = {}
    for d, is_causal in product(measurements, (False, True)):
        for name, peaks in _peaks(d, is_causal).items():
            if len(peaks) > 1:
                grown.setdefault(name, []).append(exponent(sorted(peaks.items())[-LONGEST:])[2])
    ours = [exponent for name in ORDERS for exponent in grown.get(name, [])]
    if not ours or "vanilla" not in grown:
        return untested(*MEMORY, "too few lengths were measured to tell how memory grows")
    text = (
        "Forward and backward, masked and not, over the longest N of each, the memory of Fastmax grows as N to the power "
        f"{spread(ours)}, that of the plain formula {spread(grown['vanilla'])}"
    )
    text += f"; that of PyTorch's kernel {spread(grown['softmax'])}." if "softmax" in grown else "."
    return Claim(*MEMORY, growth_verdict(ours, grown["vanilla"]), text)


def memory_finding(measurements: list[Measurement]) -> Finding:
    parts = []
    for theirs, name in SOFTMAX.items():
        ratios = []
        for d in measurements:
            peaks = _peaks(d, is_causal=False)
            n = max(peaks.get(theirs, {}).keys() & peaks.get("fastmax2", {}).keys(), default=None)
            if n is not None:
                ratio = times(peaks[theirs][n] / peaks["fastmax2"][n])
                ratios.append(f"{ratio} (D = {d.settings['head_dim']}, N = {n:,})")
        parts += [f"{name} {listed(ratios)}"] if ratios else []
    return Finding(
        f"Memory over that of Fastmax2, unmasked, at the longest N of both: {'; '.join(parts)}." if parts else ""
    )


def _peaks(measurement: Measurement, is_causal: bool) -> dict[str, dict[int, int]]:
    """Bytes by contestant and N, where there are any to be seen."""
    found: dict[str, dict[int, int]] = {}
    for row in measurement.values["memory"]:
        if row["is_causal"] == is_causal and row["peak"] > row["before"]:
            found.setdefault(row["contestant"], {})[row["tokens"]] = row["peak"] - row["before"]
    return found
