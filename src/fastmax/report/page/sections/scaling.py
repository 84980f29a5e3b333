"""Scaling: time and memory against the number of tokens (Figure 3)."""

from math import exp, log
from statistics import linear_regression, median
from typing import Any

from fastmax.plan import cheaper_form
from fastmax.report.page.documents import Document, Results
from fastmax.report.page.parts import (
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
from fastmax.report.page.words import listed, times

NAME = "scaling"
TITLE = "Scaling: time and memory against N (Figure 3)"
SOFTMAX = {"vanilla": "the plain formula", "softmax": "PyTorch's kernel"}
LINEAR = ("Section 3.1, Figure 3", "The time of Fastmax grows linearly with N, that of softmax quadratically.")
EVEN32 = ("Table 2", "The break-even point of second-order Fastmax with D = 32 is N = 1024.")
EVEN128 = ("Section 3.1", "With D = 128, Fastmax1 is ahead of softmax from N = 1400 on.")
MASKED = ("Section 3.1", "Masked Fastmax takes D times as long as unmasked, because of its memory.")
Cell = dict[str, Any]
LONGEST = 4
"""How many lengths an exponent is taken of: two would show what a neighbour of the machine did meanwhile."""


def section(results: Results) -> Section:
    documents = sorted(results.get(NAME, []), key=lambda one: one["settings"]["head_dim"])
    if not documents:
        return Section(NAME, TITLE, claims=tuple(untested(*claim) for claim in (LINEAR, EVEN32, EVEN128, MASKED)))
    slopes = slope_table(documents)
    even = break_even_table(documents)
    linear, grows = _linear(slopes)
    masked = _masked(documents)
    s = documents[0]["settings"]
    intro = (
        f"One attention block of {s['heads']} heads, fp32, random inputs, batch 1; contestants "
        f"take turns, best of {s['rounds']} "
        "rounds. vanilla is softmax by the plain formula, softmax PyTorch's fused kernel. A contestant "
        "stops where a call is expected "
        f"to take over {s['longest']:g} s; an x marks where the N × N matrices of the plain formula "
        f"exceed {s['limit'] / 2**30:g} GiB."
    )
    forward = [c for d in documents for c in charts(d, "forward")]
    both = [c for d in documents for c in charts(d, "forward + backward")]
    memory = [memory_chart(d) for d in documents]
    blocks = (
        Block("Forward", tuple(forward), (linear,), (slopes,)),
        Block("Forward and backward", tuple(both), (), (), folded=True),
        Block(
            "Peak memory of forward and backward, unmasked",
            tuple(memory),
            (_memory_finding(documents),),
            (memory_table(documents),),
        ),
        Block("Break-even", (), (_even_finding(even),), (even,)),
    )  # fmt: skip
    claims = (grows, *_even_claims(documents), masked)
    return Section(NAME, TITLE, intro, blocks, claims, _headline(documents))


def charts(document: Document, kind: str) -> list[Chart]:
    found = []
    d = document["settings"]["head_dim"]
    for is_causal in (False, True):
        cells = _cells(document, is_causal, kind)
        series = []
        for name in cells[0]["seconds"]:
            points = [(c["tokens"], c["seconds"][name]["best"] * 1e3) for c in cells if name in c["seconds"]]
            missing = tuple(c["tokens"] for c in cells if c["absent"].get(name) == "memory")
            x, y = zip(*points, strict=True) if points else ((), ())
            series.append(Series(name, x, y, missing=missing[:1]))
        mask = "masked" if is_causal else "unmasked"
        short = "backward" if "backward" in kind else "forward"
        found.append(
            Chart(
                f"scaling-{short}-{mask}-d{d}",
                f"D = {d}, {mask}",
                "tokens N",
                f"{kind}, ms",
                tuple(series),
                True,
                True,
                2,
            )
        )
    return found


def memory_chart(document: Document) -> Chart:
    d = document["settings"]["head_dim"]
    rows = [row for row in document["result"]["memory"] if not row["is_causal"]]
    series = [
        Series(
            name,
            tuple(row["tokens"] for row in rows if row["contestant"] == name),
            tuple((row["peak"] - row["before"]) / 2**20 for row in rows if row["contestant"] == name),
        )
        for name in dict.fromkeys(row["contestant"] for row in rows)
    ]
    return Chart(f"scaling-memory-d{d}", f"D = {d}", "tokens N", "peak memory, MiB", tuple(series), True, True, 2)


def memory_table(documents: list[Document]) -> Table:
    rows = [
        (d["settings"]["head_dim"], "masked" if row["is_causal"] else "unmasked", row["contestant"], row["tokens"],
         (row["peak"] - row["before"]) / 2**20)
        for d in documents for row in d["result"]["memory"]
    ]  # fmt: skip
    return Table(
        "scaling-memory",
        "Peak memory above that before the inputs, forward + backward",
        ("D", "mask", "contestant", "N", "MiB"),
        tuple(rows),
        ("", "", "", ",", ",.1f"),
    )


def slope_table(documents: list[Document]) -> Table:
    rows = []
    for d in documents:
        for is_causal in (False, True):
            for kind in ("forward", "forward + backward"):
                cells = _cells(d, is_causal, kind)
                for name in cells[0]["seconds"]:
                    slope = growth(cells, name, d["settings"]["head_dim"])
                    rows.append((d["settings"]["head_dim"], "masked" if is_causal else "unmasked", kind, name, *slope))
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
    points = [(c["tokens"], c["seconds"][name]["best"]) for c in ran[-LONGEST:]]
    x, y = ([log(point[i]) for point in points] for i in (0, 1))
    return points[0][0], points[-1][0], linear_regression(x, y).slope


def _is_factorized(cell: Cell, name: str, head_dim: int) -> bool:
    n, order = cell["tokens"], int(name.removeprefix("fastmax"))
    return cheaper_form(n, n, head_dim, head_dim, order, cell["is_causal"]) == "factorized"


def break_even(cells: list[Cell], ours: str, theirs: str) -> tuple[str, float | None]:
    """The N from which on `ours` is faster, interpolated between the measured ones: how to say it, and the number."""
    both = [c for c in cells if ours in c["seconds"] and theirs in c["seconds"]]
    ratios = [(c["tokens"], c["seconds"][theirs]["best"] / c["seconds"][ours]["best"]) for c in both]
    if not ratios:
        return "–", None
    slower = [i for i, (_, ratio) in enumerate(ratios) if ratio < 1]
    if not slower:
        return f"below {ratios[0][0]:,}", None
    if slower[-1] == len(ratios) - 1:
        return f"above {ratios[-1][0]:,}", None
    (n1, r1), (n2, r2) = ratios[slower[-1]], ratios[slower[-1] + 1]
    n = exp(log(n1) + log(n2 / n1) * -log(r1) / (log(r2) - log(r1)))
    return f"{n:,.0f}", n


def break_even_table(documents: list[Document]) -> Table:
    rows = []
    for d in documents:
        for is_causal in (False, True):
            for kind in ("forward", "forward + backward"):
                cells = _cells(d, is_causal, kind)
                found = [break_even(cells, ours, theirs)[0] for ours in ("fastmax1", "fastmax2") for theirs in SOFTMAX]
                rows.append((d["settings"]["head_dim"], "masked" if is_causal else "unmasked", kind, *found))
    columns = (
        "D",
        "mask",
        "pass",
        *(f"{ours} against {theirs}" for ours in ("fastmax1", "fastmax2") for theirs in SOFTMAX),
    )
    return Table(
        "scaling-break-even",
        "The N from which on Fastmax is faster, interpolated between measured N",
        columns,
        tuple(rows),
    )


def _cells(document: Document, is_causal: bool, kind: str) -> list[Cell]:
    return [c for c in document["result"]["time"] if c["is_causal"] == is_causal and c["pass"] == kind]


def _linear(slopes: Table) -> tuple[Finding, Claim]:
    ours = [
        row[-1] for row in slopes.rows if row[3].startswith("fastmax") and row[2] == "forward" and row[-1] is not None
    ]
    theirs = [row[-1] for row in slopes.rows if row[3] in SOFTMAX and row[2] == "forward" and row[-1] is not None]
    if not ours or not theirs:
        return Finding("Too few lengths were measured to tell how times grow."), untested(
            *LINEAR, "too few lengths were measured"
        )
    ok = max(ours) < 1.3 and min(theirs) > 1.6
    verdict = AGREES if ok else PARTLY
    text = (
        f"Over the longest N of each, the time of Fastmax grows as N to the power {min(ours):.2f} to {max(ours):.2f} "
        f"(median {median(ours):.2f}), that of softmax {min(theirs):.2f} to {max(theirs):.2f} ({median(theirs):.2f}). "
        "Fastmax counts where its factorized form is the cheaper one; below, it is dense, and quadratic too."
    )
    return Finding(text, verdict), Claim(*LINEAR, verdict, text)


def _even_finding(table: Table) -> Finding:
    every = [cell for row in table.rows for cell in row[3:]]
    below = sum(cell.startswith("below") for cell in every)
    return Finding(
        f"In {below} of {len(every)} comparisons Fastmax is already ahead at the shortest N that "
        "was measured. Fastmax takes the dense form "
        "where that is cheaper, so it has no reason to lose at short N."
    )


def _even_claims(documents: list[Document]) -> list[Claim]:
    claims = []
    for claim, d, ours, bound in ((EVEN32, 32, "fastmax2", 1024), (EVEN128, 128, "fastmax1", 1400)):
        document = next((one for one in documents if one["settings"]["head_dim"] == d), None)
        if document is None:
            claims.append(untested(*claim, f"D = {d} was not measured in this folder"))
            continue
        words, earlier = [], []
        for is_causal in (False, True):
            said, n = break_even(_cells(document, is_causal, "forward"), ours, "vanilla")
            words.append(f"{said} ({'masked' if is_causal else 'unmasked'})")
            earlier.append(said.startswith("below") or (n is not None and n <= bound))
        verdict = AGREES if all(earlier) else PARTLY if any(earlier) else DIFFERS
        text = (
            f"On this processor {ours} is ahead of the plain formula, forward, from N = {listed(words)} "
            "on: not later than the paper says."
        )
        if not all(earlier):
            text = f"On this processor {ours} is ahead of the plain formula, forward, from N = {listed(words)} on."
        claims.append(Claim(*claim, verdict, text))
    return claims


def _masked(documents: list[Document]) -> Claim:
    ratios = []
    for d in documents:
        cells = {c: _cells(d, c, "forward")[-1] for c in (False, True)}
        times_of = {
            c: cell["seconds"]["fastmax2"]["best"] for c, cell in cells.items() if "fastmax2" in cell["seconds"]
        }
        if len(times_of) == 2:
            ratios.append(times_of[True] / times_of[False])
    if not ratios:
        return untested(*MASKED)
    text = (
        f"Here masked Fastmax2 takes {min(ratios):.1f} to {max(ratios):.1f} times as long as unmasked, "
        "at the longest N: chunks need no state per token."
    )
    return Claim(*MASKED, DIFFERS if max(ratios) < 4 else AGREES, text)


def _memory_finding(documents: list[Document]) -> Finding:
    parts = []
    for d in documents:
        rows = {
            (r["contestant"], r["tokens"]): r["peak"] - r["before"] for r in d["result"]["memory"] if not r["is_causal"]
        }
        common = [n for name, n in rows if name == "vanilla" and ("fastmax2", n) in rows]
        if common:
            n = max(common)
            parts.append(
                f"{times(rows['vanilla', n] / max(rows['fastmax2', n], 1))} at D = {d['settings']['head_dim']} (N = {n:,})"
            )
    return (
        Finding(f"The plain formula needs more memory than Fastmax2: {listed(parts)}.", AGREES)
        if parts
        else Finding("")
    )


def _headline(documents: list[Document]) -> str:
    for d in documents:
        cells = [c for c in _cells(d, False, "forward") if {"vanilla", "fastmax2"} <= c["seconds"].keys()]
        if cells:
            c = cells[-1]
            ratio = c["seconds"]["vanilla"]["best"] / c["seconds"]["fastmax2"]["best"]
            return (
                f"scaling: Fastmax2 forward is {times(ratio)} as fast as softmax by the plain formula at "
                f"N = {c['tokens']:,}, D = {d['settings']['head_dim']}"
            )
    return ""
