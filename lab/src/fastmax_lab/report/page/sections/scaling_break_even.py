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
    )


def _even_cell(even: tuple[float, float] | None) -> float | str | None:
    if even is None:
        return None
    low, high = even
    return f"below {high:,}" if low == 0 else f"above {low:,}" if high == inf else low


def even_claim(measurements: list[Measurement], claim: tuple[str, str], d: int, ours: str, paper: int) -> Claim:
    """Forward, against the plain formula. Within a factor of two it is the paper's number."""
    measurement = next((one for one in measurements if one.settings["head_dim"] == d), None)
    if measurement is None:
        return untested(*claim, f"D = {d} was not measured in this folder")
    cells = {c: cells_of(measurement, c, FORWARD) for c in (False, True)}
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
        text += f": the dense one up to {listed([f'{n:,} ({mask_name(c)})' for c, n in dense])}." if dense else "."
    verdict = AGREES if places == {"as said"} else DIFFERS if places == {"later"} else PARTLY
    return Claim(*claim, verdict, text)


def _masks(found: dict[bool, tuple[float, float]], words: str) -> str:
    """The masks of which these words are so."""
    return listed([mask_name(c) for c, even in found.items() if _even_words(even) == words])


def _dense_up_to(cells: list[Cell], name: str, head_dim: int) -> int:
    """The longest N that was measured at which the dense form is the cheaper one; 0 if there is none."""
    dense = (c["tokens"] for c in cells if name in c["seconds"] and not is_factorized(c, name, head_dim))
    return max(dense, default=0)


def _place(even: tuple[float, float], paper: int) -> str:
    """Whether it comes as the paper says; nothing where what was measured does not tell."""
    low, high = even
    if low >= paper / 2 and high <= 2 * paper:
        return "as said"
    return "later" if low >= 2 * paper else "earlier" if high <= paper else ""


def even_finding(measurements: list[Measurement]) -> Finding:
    """Which comparisons are not won from the shortest length on."""
    count, later = 0, []
    for d, is_causal, kind, ours, theirs in product(measurements, (False, True), (FORWARD, BOTH), ORDERS, SOFTMAX):
        even = break_even(cells_of(d, is_causal, kind), ours, theirs)
        count += even is not None
        if even is not None and even[0] > 0:
            where = f"D = {d.settings['head_dim']}, {mask_name(is_causal)}, {kind}"
            later.append(f"{ours} is ahead of {SOFTMAX[theirs]} {_even_words(even)} ({where})")
    if not count:
        return Finding("")
    text = f"In {count - len(later)} of {count} comparisons Fastmax is ahead at every N that was measured."
    return Finding(f"{text} In the others {listed(later)}." if later else text)


def _even_words(even: tuple[float, float]) -> str:
    low, high = even
    if low == 0:
        return f"at every N that was measured, from {high:,} on"
    return f"at no N that was measured, up to {low:,}" if high == inf else f"from N = {low:,.0f} on"
