"""Scaling: the growth of the time with N, and what a causal mask costs."""

from itertools import product
from statistics import median

from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page.parts import AGREES, DIFFERS, PARTLY, Claim, Table, untested
from fastmax_lab.report.page.sections.scaling_cells import (
    BOTH,
    FORWARD,
    LONGEST,
    ORDERS,
    SOFTMAX,
    Cell,
    cells_of,
    exponent,
    growth_verdict,
    is_factorized,
    mask_name,
)

LINEAR = ("Section 3.1, Figure 3", "The time of Fastmax grows linearly with N, that of softmax quadratically.")
MASKED = ("Section 3.1", "Masked Fastmax takes D times as long as unmasked, because of its memory.")


def slope_table(measurements: list[Measurement]) -> Table:
    rows = [
        (d.settings["head_dim"], mask_name(is_causal), kind, name, *growth(cells, name, d.settings["head_dim"]))
        for d, is_causal, kind in product(measurements, (False, True), (FORWARD, BOTH))
        for cells in [cells_of(d, is_causal, kind)]
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
    """Return the first N, the last, and the exponent between them: a line through the logarithms of the `LONGEST` longest.

    Fastmax counts where it takes the factorized form: below, the dense one is cheaper, and grows as softmax does.
    """
    ran = [c for c in cells if name in c["seconds"] and (name in SOFTMAX or is_factorized(c, name, head_dim))]
    if len(ran) < 2:
        return None, None, None
    return exponent([(c["tokens"], c["seconds"][name]["best"]) for c in ran[-LONGEST:]])


def linear_claim(slopes: Table) -> Claim:
    rows = [row for row in slopes.rows if row[2] == FORWARD]
    ours, theirs = _exponents(slopes, FORWARD)
    if not ours or not theirs:
        return untested(*LINEAR, "too few lengths were measured to see how times grow")
    number = f"exponent of N: {median(ours):.2f} against {median(theirs):.2f}, medians; {max(ours):.2f} at the most"
    notes = [
        "Judged forward, over the longest N of each. Fastmax counts where its factorized form is the cheaper one: below, it "
        "is dense, and quadratic too."
    ]
    absent = dict.fromkeys(f"{row[3]} at D = {row[0]}" for row in rows if row[3] in ORDERS and row[-1] is None)
    notes += [f"{one} is not counted: it did not run at two such lengths." for one in absent]
    return Claim(*LINEAR, growth_verdict(ours, theirs), number, tuple(notes), slopes.name)


def _exponents(slopes: Table, kind: str) -> tuple[list[float], list[float]]:
    """Return those of Fastmax and those of softmax."""
    rows = [row for row in slopes.rows if row[2] == kind and row[-1] is not None]
    return [row[-1] for row in rows if row[3] in ORDERS], [row[-1] for row in rows if row[3] in SOFTMAX]


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
    """Return the N, and the time masked over unmasked.

    The dense form has no state that a mask could make larger: it does not count.
    """
    d = measurement.settings["head_dim"]
    took = [
        {c["tokens"]: c["seconds"][name]["best"] for c in cells_of(measurement, is_causal, kind)
         if name in c["seconds"] and is_factorized(c, name, d)}
        for is_causal in (False, True)
    ]  # fmt: skip
    n = max(took[0].keys() & took[1].keys(), default=None)
    return (None, None) if n is None else (n, took[1][n] / took[0][n])


def masked_claim(measurements: list[Measurement]) -> Claim:
    ratios = {d.settings["head_dim"]: masked_ratio(d, FORWARD, "fastmax2")[1] for d in measurements}
    judged = {d: ratio for d, ratio in ratios.items() if ratio is not None}
    if not judged:
        return untested(*MASKED, "Fastmax2 did not run in its factorized form, forward, with and without the mask")
    near = [d / 2 <= ratio <= 2 * d for d, ratio in judged.items()]
    notes = ["Judged by Fastmax2, forward."]
    notes += (
        [] if any(near) else ["The mask is cheap because the tokens are walked in chunks: no state per token is kept."]
    )
    notes += [
        f"Fastmax2 at D = {d} did not reach its factorized form and is not counted." for d in ratios if d not in judged
    ]
    verdict = AGREES if all(near) else PARTLY if any(near) else DIFFERS
    return Claim(*MASKED, verdict, f"{_times(judged)} times", tuple(notes), "scaling-masked")


def _times(ratios: dict[int, float]) -> str:
    low, high = (f"{end(ratios.values()):.1f}" for end in (min, max))
    return low if low == high else f"{low} to {high}"
