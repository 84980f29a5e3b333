"""Scaling: the N from which on Fastmax is faster than softmax."""

from itertools import product
from math import exp, inf, log

from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page.parts import AGREES, DIFFERS, PARTLY, Claim, Finding, Table, untested
from fastmax_lab.report.page.sections.scaling_cells import (
    BOTH,
    FORWARD,
    ORDERS,
    SOFTMAX,
    Cell,
    cells_of,
    is_factorized,
    mask_name,
)
from fastmax_lab.report.page.words import listed


def break_even(cells: list[Cell], ours: str, theirs: str) -> tuple[float, float] | None:
    """Return the two N between which `ours` gets faster for good, or None if the two were never measured together.

    An interpolated N is returned twice. A side where nothing was measured is 0 or infinity.
    """
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
    """Return the break-even of every pair. Interpolated ones are numbers, the others words."""
    pairs = [(ours, theirs) for ours in ORDERS for theirs in SOFTMAX]
    rows = [
        (d.settings["head_dim"], mask_name(is_causal), *(_even_cell(break_even(cells, *pair)) for pair in pairs))
        for d, is_causal in product(measurements, (False, True))
        for cells in [cells_of(d, is_causal, kind)]
    ]
    return Table(
        "scaling-break-even" if kind == FORWARD else "scaling-break-even-backward",
        f"The N from which on Fastmax is faster, interpolated between measured N: {kind}",
        ("D", "mask", *(f"{ours} against {theirs}" for ours, theirs in pairs)),
        tuple(rows),
        ("", "", *(",.0f" for _ in pairs)),
        folded=True,
    )


def _even_cell(even: tuple[float, float] | None) -> float | str | None:
    if even is None:
        return None
    low, high = even
    return f"below {high:,}" if low == 0 else f"above {low:,}" if high == inf else low


def even_claim(measurements: list[Measurement], claim: tuple[str, str], d: int, ours: str, paper: int) -> Claim:
    """Compare the forward break-even against the plain formula with the paper's: within a factor of two it is the same."""
    measurement = next((one for one in measurements if one.settings["head_dim"] == d), None)
    if measurement is None:
        return untested(*claim, f"D = {d} was not measured in this folder")
    cells = {c: cells_of(measurement, c, FORWARD) for c in (False, True)}
    found = {c: even for c in cells if (even := break_even(cells[c], ours, "vanilla")) is not None}
    places = {place for even in found.values() if (place := _place(even, paper))}
    if not places:
        return untested(*claim, f"{ours} and the plain formula were not measured together at lengths that would decide")
    words = {c: _even_words(even) for c, even in found.items()}
    same = len(set(words.values())) == 1
    said = words[min(words)] if same else "; ".join(f"{mask_name(c)}, {text}" for c, text in words.items())
    dense = [f"{n:,} ({mask_name(c)})" for c in cells if (n := _dense_up_to(cells[c], ours, d))]
    notes = (f"{ours} with D = {d} is dense up to {listed(dense)}.",) if dense else ()
    verdict = AGREES if places == {"as said"} else DIFFERS if places == {"later"} else PARTLY
    return Claim(*claim, verdict, f"faster than the plain formula {said}", notes, "scaling-break-even")


def alone_claim(
    alone: Measurement | None, measurements: list[Measurement], claim: tuple[str, str], paper: int
) -> Claim:
    """Judge the factorized form alone, which the paper's break-even speaks of; else the cheaper of the two forms."""
    if alone is None:
        return even_claim(measurements, claim, 32, "fastmax2", paper)
    found = {name: break_even(alone.values["time"], "fastmax2", name) for name in SOFTMAX}
    ends = {name: even for name, even in found.items() if even is not None}
    if not ends:
        return untested(*claim, "the factorized form was not measured beside softmax")
    places = {_place(even, paper) for even in ends.values()}
    said = "; ".join(f"{SOFTMAX[name]} {_even_words(even)}" for name, even in ends.items())
    verdict = AGREES if places == {"as said"} else DIFFERS if places == {"later"} else PARTLY
    notes = ("The factorized form alone is judged. A call takes the cheaper of both forms, so it is ahead earlier.",)
    return Claim(*claim, verdict, f"factorized form alone: faster than {said}", notes, "scaling-form-alone")


def alone_table(alone: Measurement | None) -> tuple[Table, ...]:
    """Return the milliseconds of the factorized form alone beside those of softmax."""
    if alone is None:
        return ()
    names = (*SOFTMAX, *ORDERS)
    rows = tuple((c["tokens"], *(1e3 * c["seconds"][name]["best"] for name in names)) for c in alone.values["time"])
    title = f"Milliseconds forward, unmasked, D = {alone.settings['head_dim']}, of Fastmax in its factorized form alone"
    return (Table("scaling-form-alone", title, ("N", *names), rows, (",", *(".3f",) * len(names)), folded=False),)


def _dense_up_to(cells: list[Cell], name: str, head_dim: int) -> int:
    """Return the longest N that was measured at which the dense form is the cheaper one; 0 if there is none."""
    dense = (c["tokens"] for c in cells if name in c["seconds"] and not is_factorized(c, name, head_dim))
    return max(dense, default=0)


def _place(even: tuple[float, float], paper: int) -> str:
    """Return "as said", "earlier" or "later" than the paper's N, or "" if the lengths that were measured do not decide."""
    low, high = even
    if low >= paper / 2 and high <= 2 * paper:
        return "as said"
    return "later" if low >= 2 * paper else "earlier" if high <= paper else ""


def even_exceptions(measurements: list[Measurement]) -> list[Finding]:
    """Name the comparisons that are not won from the shortest length on."""
    count, later = 0, []
    for d, is_causal, kind, ours, theirs in product(measurements, (False, True), (FORWARD, BOTH), ORDERS, SOFTMAX):
        even = break_even(cells_of(d, is_causal, kind), ours, theirs)
        count += even is not None
        if even is not None and even[0] > 0:
            where = f"D = {d.settings['head_dim']}, {mask_name(is_causal)}, {kind}"
            later.append(Finding(f"{ours} is ahead of {SOFTMAX[theirs]} {_even_words(even)} ({where})."))
    if not count:
        return []
    text = f"In {count - len(later)} of {count} comparisons Fastmax is ahead at every N that was measured."
    return [Finding(f"{text} The exceptions follow." if later else text), *later]


def _even_words(even: tuple[float, float]) -> str:
    low, high = even
    if low == 0:
        return f"at every N that was measured, from {high:,} on"
    return f"at no N that was measured, up to {low:,}" if high == inf else f"from {low:,.0f} on"
