"""Scaling: time and memory against the number of tokens (Figure 3)."""

from collections.abc import Sequence
from itertools import product
from math import exp, inf, log
from statistics import linear_regression, median
from typing import Any

from fastmax.plan import cheaper_form
from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page.parts import (
    AGREES,
    DIFFERS,
    PARTLY,
    Block,
    Chart,
    Claim,
    Finding,
    Section,
    Series,
    Table,
    untested,
)
from fastmax_lab.report.page.results import Results
from fastmax_lab.report.page.words import listed, times

NAME = "scaling"
TITLE = "Scaling: time and memory against N (Figure 3)"
SOFTMAX = {"vanilla": "the plain formula", "softmax": "PyTorch's kernel"}
ORDERS = ("fastmax1", "fastmax2")
FORWARD, BOTH = "forward", "forward + backward"
LINEAR = ("Section 3.1, Figure 3", "The time of Fastmax grows linearly with N, that of softmax quadratically.")
EVEN32 = ("Table 2", "The break-even point of second-order Fastmax with D = 32 is N = 1024.")
EVEN128 = ("Section 3.1", "With D = 128, Fastmax1 is ahead of softmax from N = 1400 on.")
MASKED = ("Section 3.1", "Masked Fastmax takes D times as long as unmasked, because of its memory.")
MEMORY = ("Abstract, Conclusion", "The memory of attention falls from O(N²) to O(N).")
CLAIMS = (LINEAR, MASKED, MEMORY, EVEN32, EVEN128)
Cell = dict[str, Any]
LONGEST = 4
"""How many lengths an exponent is taken of: two would show what a neighbour of the machine did meanwhile."""
LINEAR_BELOW, QUADRATIC_ABOVE = 1.3, 1.6
"""Exponents that are taken for 1, and for 2."""


def section(results: Results) -> Section:
    measurements = sorted(results.get(NAME, []), key=lambda one: one.settings["head_dim"])
    if not measurements:
        return Section(NAME, TITLE, claims=tuple(untested(*claim) for claim in CLAIMS))
    slopes = slope_table(measurements)
    linear, masked, memory = _linear(slopes), _masked(measurements), _memory(measurements)
    even32 = _even(measurements, EVEN32, 32, "fastmax2", 1024)
    even128 = _even(measurements, EVEN128, 128, "fastmax1", 1400)
    s = measurements[0].settings
    intro = (
        f"One attention block of {s['heads']} heads, fp32, random inputs, batch 1; contestants take turns, best of "
        f"{s['rounds']} rounds. vanilla is softmax by the plain formula, softmax PyTorch's fused kernel. A contestant stops "
        f"where a call is expected to take over {s['longest']:g} s; an x above a figure marks the N from which on the N × N "
        f"matrices of the plain formula exceed {s['limit'] / 2**30:g} GiB."
    )
    forward = [c for d in measurements for c in charts(d, FORWARD)]
    both = [c for d in measurements for c in charts(d, BOTH)]
    blocks = (
        Block("Forward", tuple(forward), (linear.finding,), (slopes,)),
        Block("Forward and backward", tuple(both), (), (), folded=True),
        Block("Masked against unmasked", (), (masked.finding,), (masked_table(measurements),)),
        Block(
            "Peak memory of forward and backward, unmasked",
            tuple(memory_chart(d) for d in measurements),
            (memory.finding, _against_softmax(measurements)),
            (memory_table(measurements),),
        ),
        Block(
            "Break-even",
            (),
            (even32.finding, even128.finding, _even_finding(measurements)),
            (break_even_table(measurements, FORWARD), break_even_table(measurements, BOTH)),
        ),
    )
    claims = (linear, masked, memory, even32, even128)
    return Section(NAME, TITLE, intro, blocks, claims, _headline(measurements))


def charts(measurement: Measurement, kind: str) -> list[Chart]:
    found = []
    d = measurement.settings["head_dim"]
    for is_causal in (False, True):
        cells = _cells(measurement, is_causal, kind)
        series = []
        for name in cells[0]["seconds"]:
            points = [(c["tokens"], c["seconds"][name]["best"] * 1e3) for c in cells if name in c["seconds"]]
            missing = tuple(c["tokens"] for c in cells if c["absent"].get(name) == "memory")
            x, y = zip(*points, strict=True) if points else ((), ())
            series.append(Series(name, x, y, missing=missing[:1]))
        name = f"scaling-{'backward' if kind == BOTH else 'forward'}-{_mask(is_causal)}-d{d}"
        title = f"D = {d}, {_mask(is_causal)}"
        found.append(Chart(name, title, "tokens N", f"{kind}, ms", tuple(series), True, True, 2))
    return found


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
        (d.settings["head_dim"], _mask(row["is_causal"]), row["contestant"], row["tokens"],
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


def slope_table(measurements: list[Measurement]) -> Table:
    rows = [
        (d.settings["head_dim"], _mask(is_causal), kind, name, *growth(cells, name, d.settings["head_dim"]))
        for d, is_causal, kind in product(measurements, (False, True), (FORWARD, BOTH))
        for cells in [_cells(d, is_causal, kind)]
        for name in cells[0]["seconds"]
    ]
    return Table(
        "scaling-growth",
        "Growth of the time: the exponent of N over the longest that were measured, of Fastmax in its factorized form",
        ("D", "mask", "pass", "contestant", "from N", "to N", "exponent"),
        tuple(rows),
        ("", "", "", "", ",", ",", ".2f"),
    )


def growth(cells: list[Cell], name: str, head_dim: int) -> tuple[int | None, int | None, float | None]:
    """From which N to which, and the exponent between them: a line through the logarithms of the `LONGEST` longest. Fastmax
    counts where it takes the factorized form: below, the dense one is cheaper, and grows as softmax does."""
    ran = [c for c in cells if name in c["seconds"] and (name in SOFTMAX or _is_factorized(c, name, head_dim))]
    if len(ran) < 2:
        return None, None, None
    return _exponent([(c["tokens"], c["seconds"][name]["best"]) for c in ran[-LONGEST:]])


def _exponent(points: Sequence[tuple[int, float]]) -> tuple[int, int, float]:
    x, y = ([log(point[i]) for point in points] for i in (0, 1))
    return points[0][0], points[-1][0], linear_regression(x, y).slope


def _is_factorized(cell: Cell, name: str, head_dim: int) -> bool:
    n, order = cell["tokens"], int(name.removeprefix("fastmax"))
    return cheaper_form(n, n, head_dim, head_dim, order, cell["is_causal"]) == "factorized"


def break_even(cells: list[Cell], ours: str, theirs: str) -> tuple[float, float] | None:
    """Between which N `ours` gets faster for good: one number twice where it is interpolated between measured ones, 0 or
    infinity on the side where nothing was measured, None if the two were never measured together."""
    both = [c for c in cells if ours in c["seconds"] and theirs in c["seconds"]]
    ratios = [(c["tokens"], c["seconds"][theirs]["best"] / c["seconds"][ours]["best"]) for c in both]
    if not ratios:
        return None
    slower = [i for i, (_, ratio) in enumerate(ratios) if ratio < 1]
    if not slower:
        return 0, ratios[0][0]
    if slower[-1] == len(ratios) - 1:
        return ratios[-1][0], inf
    (n1, r1), (n2, r2) = ratios[slower[-1]], ratios[slower[-1] + 1]
    n = exp(log(n1) + log(n2 / n1) * -log(r1) / (log(r2) - log(r1)))
    return n, n


def break_even_table(measurements: list[Measurement], kind: str) -> Table:
    """Numbers are of what was interpolated: they sort as such."""
    pairs = [(ours, theirs) for ours in ORDERS for theirs in SOFTMAX]
    rows = [
        (d.settings["head_dim"], _mask(is_causal), *(_even_cell(break_even(cells, *pair)) for pair in pairs))
        for d, is_causal in product(measurements, (False, True))
        for cells in [_cells(d, is_causal, kind)]
    ]
    return Table(
        "scaling-break-even" if kind == FORWARD else "scaling-break-even-backward",
        f"The N from which on Fastmax is faster, interpolated between measured N: {kind}",
        ("D", "mask", *(f"{ours} against {theirs}" for ours, theirs in pairs)),
        tuple(rows),
        ("", "", *(",.0f" for _ in pairs)),
    )


def _even_cell(even: tuple[float, float] | None) -> float | str | None:
    if even is None:
        return None
    low, high = even
    return f"below {high:,}" if low == 0 else f"above {low:,}" if high == inf else low


def _mask(is_causal: bool) -> str:
    return "masked" if is_causal else "unmasked"


def _cells(measurement: Measurement, is_causal: bool, kind: str) -> list[Cell]:
    return [c for c in measurement.values["time"] if c["is_causal"] == is_causal and c["pass"] == kind]


def _linear(slopes: Table) -> Claim:
    rows = [row for row in slopes.rows if row[2] == FORWARD]
    (ours, theirs), (ours_too, theirs_too) = (_exponents(slopes, kind) for kind in (FORWARD, BOTH))
    if not ours or not theirs:
        return untested(*LINEAR, "too few lengths were measured to tell how times grow")
    text = (
        "Forward, over the longest N of each, the time of Fastmax grows as N to the power "
        f"{_spread(ours)}, that of softmax {_spread(theirs)}."
    )
    steep = [row for row in rows if row[3] in ORDERS and row[-1] is not None and row[-1] >= LINEAR_BELOW]
    if steep:
        text += (
            f" Over {LINEAR_BELOW}: {listed([f'{row[3]} at D = {row[0]}, {row[1]}, {row[-1]:.2f}' for row in steep])}."
        )
    if ours_too and theirs_too:
        text += f" With the backward pass: {_spread(ours_too)} and {_spread(theirs_too)}."
    text += " Fastmax counts where its factorized form is the cheaper one; below, it is dense, and quadratic too."
    absent = dict.fromkeys(f"{row[3]} at D = {row[0]}" for row in rows if row[3] in ORDERS and row[-1] is None)
    if absent:
        text += f" Not counted, since it did not run at two such lengths: {listed([*absent])}."
    return Claim(*LINEAR, _growth_verdict(ours, theirs), text)


def _exponents(slopes: Table, kind: str) -> tuple[list[float], list[float]]:
    """Of Fastmax and of softmax."""
    rows = [row for row in slopes.rows if row[2] == kind and row[-1] is not None]
    return [row[-1] for row in rows if row[3] in ORDERS], [row[-1] for row in rows if row[3] in SOFTMAX]


def _spread(values: list[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f} (median {median(values):.2f})"


def _growth_verdict(ours: list[float], theirs: list[float]) -> str:
    if max(ours) < LINEAR_BELOW and min(theirs) > QUADRATIC_ABOVE:
        return AGREES
    return DIFFERS if median(ours) >= LINEAR_BELOW else PARTLY


def _even(measurements: list[Measurement], claim: tuple[str, str], d: int, ours: str, paper: int) -> Claim:
    """Forward, against the plain formula. Within a factor of two it is the paper's number."""
    measurement = next((one for one in measurements if one.settings["head_dim"] == d), None)
    if measurement is None:
        return untested(*claim, f"D = {d} was not measured in this folder")
    cells = {c: _cells(measurement, c, FORWARD) for c in (False, True)}
    found = {c: even for c in cells if (even := break_even(cells[c], ours, "vanilla")) is not None}
    places = {place for even in found.values() if (place := _place(even, paper))}
    if not places:
        return untested(*claim, f"{ours} and the plain formula were not measured together at lengths that would tell")
    said = " and ".join(
        f"{words} ({_masks(found, words)})" for words in dict.fromkeys(map(_even_words, found.values()))
    )
    text = f"On this processor {ours} is faster than the plain formula, forward, {said}."
    if "earlier" in places:
        text += (
            f" That is earlier than the paper's N = {paper}. Fastmax takes the cheaper one of its two forms at every N"
        )
        dense = [(c, n) for c in cells if (n := _dense_up_to(cells[c], ours, d))]
        text += f": the dense one up to {listed([f'{n:,} ({_mask(c)})' for c, n in dense])}." if dense else "."
    verdict = AGREES if places == {"as said"} else DIFFERS if places == {"later"} else PARTLY
    return Claim(*claim, verdict, text)


def _masks(found: dict[bool, tuple[float, float]], words: str) -> str:
    """The masks of which these words are so."""
    return listed([_mask(c) for c, even in found.items() if _even_words(even) == words])


def _dense_up_to(cells: list[Cell], name: str, head_dim: int) -> int:
    """The longest N that was measured at which the dense form is the cheaper one; 0 if there is none."""
    dense = (c["tokens"] for c in cells if name in c["seconds"] and not _is_factorized(c, name, head_dim))
    return max(dense, default=0)


def _place(even: tuple[float, float], paper: int) -> str:
    """Whether it comes as the paper says; nothing where what was measured does not tell."""
    low, high = even
    if low >= paper / 2 and high <= 2 * paper:
        return "as said"
    return "later" if low >= 2 * paper else "earlier" if high <= paper else ""


def _even_words(even: tuple[float, float]) -> str:
    low, high = even
    if low == 0:
        return f"at every N that was measured, from {high:,} on"
    return f"at no N that was measured, up to {low:,}" if high == inf else f"from N = {low:,.0f} on"


def _even_finding(measurements: list[Measurement]) -> Finding:
    """Which comparisons are not won from the shortest length on."""
    count, later = 0, []
    for d, is_causal, kind, ours, theirs in product(measurements, (False, True), (FORWARD, BOTH), ORDERS, SOFTMAX):
        even = break_even(_cells(d, is_causal, kind), ours, theirs)
        count += even is not None
        if even is not None and even[0] > 0:
            where = f"D = {d.settings['head_dim']}, {_mask(is_causal)}, {kind}"
            later.append(f"{ours} is ahead of {SOFTMAX[theirs]} {_even_words(even)} ({where})")
    if not count:
        return Finding("")
    text = f"In {count - len(later)} of {count} comparisons Fastmax is ahead at every N that was measured."
    return Finding(f"{text} In the others {listed(later)}." if later else text)


def masked_table(measurements: list[Measurement]) -> Table:
    rows = [
        (d.settings["head_dim"], kind, *(x for name in ORDERS for x in masked_ratio(d, kind, name)))
        for d, kind in product(measurements, (FORWARD, BOTH))
    ]
    return Table(
        "scaling-masked",
        "Time of masked Fastmax over that of unmasked, at the longest N at which both ran in their factorized form",
        ("D", "pass", "fastmax1, N", "fastmax1, times", "fastmax2, N", "fastmax2, times"),
        tuple(rows),
        ("", "", ",", ".2f", ",", ".2f"),
    )


def masked_ratio(measurement: Measurement, kind: str, name: str) -> tuple[int | None, float | None]:
    """The N, and masked over unmasked. The dense form has no state that a mask could make larger: it does not count."""
    d = measurement.settings["head_dim"]
    took = [
        {c["tokens"]: c["seconds"][name]["best"] for c in _cells(measurement, is_causal, kind)
         if name in c["seconds"] and _is_factorized(c, name, d)}
        for is_causal in (False, True)
    ]  # fmt: skip
    n = max(took[0].keys() & took[1].keys(), default=None)
    return (None, None) if n is None else (n, took[1][n] / took[0][n])


def _masked(measurements: list[Measurement]) -> Claim:
    def ratios(kind: str, name: str) -> dict[int, float]:
        found = {d.settings["head_dim"]: masked_ratio(d, kind, name)[1] for d in measurements}
        return {d: ratio for d, ratio in found.items() if ratio is not None}

    judged = ratios(FORWARD, "fastmax2")
    if not judged:
        return untested(*MASKED, "Fastmax2 did not run in its factorized form, forward, with and without the mask")
    text = (
        f"Masked Fastmax2, forward, takes {_times(judged)} times as long as unmasked (D = {listed([*map(str, judged)])}, the "
        "longest N at which both ran in their factorized form)"
    )
    others = ((BOTH, "fastmax2", "with the backward pass"), (FORWARD, "fastmax1", "Fastmax1 forward"),
              (BOTH, "fastmax1", "Fastmax1 with the backward pass"))  # fmt: skip
    text += "".join(f"; {words} {_times(found)}" for *at, words in others for found in [ratios(*at)] if found)
    near = [d / 2 <= ratio <= 2 * d for d, ratio in judged.items()]
    text += "." if any(near) else ". It is computed in chunks, which need no state per token."
    missing = [str(d.settings["head_dim"]) for d in measurements if d.settings["head_dim"] not in judged]
    text += f" Not counted, since that form was not reached: Fastmax2 at D = {listed(missing)}." if missing else ""
    return Claim(*MASKED, AGREES if all(near) else PARTLY if any(near) else DIFFERS, text)


def _times(ratios: dict[int, float]) -> str:
    low, high = (f"{end(ratios.values()):.1f}" for end in (min, max))
    return low if low == high else f"{low} to {high}"


def _peaks(measurement: Measurement, is_causal: bool) -> dict[str, dict[int, int]]:
    """Bytes by contestant and N, where there are any to be seen."""
    found: dict[str, dict[int, int]] = {}
    for row in measurement.values["memory"]:
        if row["is_causal"] == is_causal and row["peak"] > row["before"]:
            found.setdefault(row["contestant"], {})[row["tokens"]] = row["peak"] - row["before"]
    return found


def _memory(measurements: list[Measurement]) -> Claim:
    grown: dict[str, list[float]] = {}
    for d, is_causal in product(measurements, (False, True)):
        for name, peaks in _peaks(d, is_causal).items():
            if len(peaks) > 1:
                grown.setdefault(name, []).append(_exponent(sorted(peaks.items())[-LONGEST:])[2])
    ours = [exponent for name in ORDERS for exponent in grown.get(name, [])]
    if not ours or "vanilla" not in grown:
        return untested(*MEMORY, "too few lengths were measured to tell how memory grows")
    text = (
        "Forward and backward, masked and not, over the longest N of each, the memory of Fastmax grows as N to the power "
        f"{_spread(ours)}, that of the plain formula {_spread(grown['vanilla'])}"
    )
    text += f"; that of PyTorch's kernel {_spread(grown['softmax'])}." if "softmax" in grown else "."
    return Claim(*MEMORY, _growth_verdict(ours, grown["vanilla"]), text)


def _against_softmax(measurements: list[Measurement]) -> Finding:
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


def _headline(measurements: list[Measurement]) -> str:
    for d in measurements:
        cells = [c for c in _cells(d, False, FORWARD) if {"vanilla", "fastmax2"} <= c["seconds"].keys()]
        if cells:
            c = cells[-1]
            ratio = c["seconds"]["vanilla"]["best"] / c["seconds"]["fastmax2"]["best"]
            return (
                f"scaling: Fastmax2 forward is {times(ratio)} as fast as softmax by the plain formula at "
                f"N = {c['tokens']:,}, D = {d.settings['head_dim']}"
            )
    return ""
