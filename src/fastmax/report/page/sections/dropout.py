"""Dropout: which way of dropping factorized terms helps (Figure 2)."""

from fastmax.report.page.documents import Document, Results, group, spread
from fastmax.report.page.parts import (
    AGREES,
    DIFFERS,
    OPEN,
    PARTLY,
    Block,
    Chart,
    Claim,
    Section,
    Series,
    Table,
    untested,
)

NAME = "dropout"
TITLE = "Dropout (Figure 2)"
BEST = ("Section 2.4, Figure 2", "Dropout of the quadratic terms alone is the most effective way.")
UNFINISHED = "too little of it was measured in this folder"
HELPS = ("Figure 2", "Even small amounts of dropout on the quadratic term benefit test generalization.")


def section(results: Results) -> Section:
    documents = results.get(NAME, [])
    if not documents:
        return Section(NAME, TITLE, claims=(untested(*BEST), untested(*HELPS)))
    s = documents[0]["settings"]
    intro = (
        f"A Fastmax2 classifier of images ({s['data']}) trained on only {s['examples']:,} of them, so that it overfits; "
        f"test loss on {s['tested']:,}, mean and standard deviation over seeds. standard drops entries of all features, "
        "1d whole tokens, quadratic features of degree 2 only."
    )
    table = summary(documents)
    rates = sorted({d["settings"]["rate"] for d in documents} - {0.0})
    charts = tuple(chart(documents, rate) for rate in rates)
    claims = claims_of(table)
    findings = tuple(claim.finding for claim in claims)
    return Section(NAME, TITLE, intro, (Block("", charts, findings, (table,)),), claims, _headline(table))


def _headline(table: Table) -> str:
    losses = {(row[0], row[1]): row[3] for row in table.rows}
    (way, rate), lowest = min(losses.items(), key=lambda item: item[1])
    if way == "none":
        return f"dropout: the test loss is lowest, {lowest:.3f}, without any"
    without = "".join(f"; without dropout {loss:.3f}" for (other, _), loss in losses.items() if other == "none")
    return f"dropout: the lowest test loss, {lowest:.3f}, has {way} at rate {rate:g}{without}"


def chart(documents: list[Document], rate: float) -> Chart:
    series = []
    for mode, found in group(
        (d for d in documents if d["settings"]["rate"] in (0.0, rate)), lambda d: d["settings"]["mode"]
    ).items():
        steps = tuple(point[0] for point in found[0]["result"]["curve"])
        points = [spread([d["result"]["curve"][i][1] for d in found]) for i in range(len(steps))]
        series.append(Series(mode, steps, tuple(p[0] for p in points), tuple(p[1] for p in points)))
    order = ["none", "standard", "1d", "quadratic"]
    series.sort(key=lambda one: order.index(one.label))
    return Chart(f"dropout-{rate:g}", f"rate {rate:g}", "training steps", "test loss, nats", tuple(series))


def summary(documents: list[Document]) -> Table:
    rows = []
    for (mode, rate), found in group(documents, lambda d: (d["settings"]["mode"], d["settings"]["rate"])).items():
        last = spread([d["result"]["test_loss"] for d in found])
        lowest = spread([min(point[1] for point in d["result"]["curve"]) for d in found])
        accuracy = spread([100 * d["result"]["accuracy"] for d in found])
        rows.append((mode, rate, len(found), *last, *lowest, *accuracy))
    rows.sort(key=lambda row: (row[1], row[0]))
    columns = ("way", "rate", "seeds", "test loss at the end", "±", "lowest test loss", "± ", "accuracy, %", "±  ")
    return Table(
        "dropout",
        "Test loss of each way and rate",
        columns,
        tuple(rows),
        ("", "g", "", ".3f", ".3f", ".3f", ".3f", ".1f", ".1f"),
    )


def claims_of(table: Table) -> tuple[Claim, Claim]:
    """By the loss at the end; a difference below the deviations over seeds together decides nothing.

    A rate counts where the quadratic way was measured at it, and another one.
    """
    by_rate = {rate: {row[0]: row for row in table.rows if row[1] == rate} for rate in {row[1] for row in table.rows}}
    none = by_rate.get(0.0, {}).get("none")
    rates = sorted(rate for rate, rows in by_rate.items() if "quadratic" in rows and len(rows) > 1)
    if none is None or not rates:
        return untested(*BEST, UNFINISHED), untested(*HELPS, UNFINISHED)
    wins, words = [], []
    for rate in rates:
        rows = by_rate[rate]
        order = sorted(rows.values(), key=lambda row: row[3])
        words.append(f"at rate {rate:g} " + ", ".join(f"{row[0]} {row[3]:.3f}" for row in order))
        rest = min(row[3] for name, row in rows.items() if name != "quadratic")
        noise = max(row[4] or 0.0 for row in order)
        wins.append(1 if rows["quadratic"][3] < rest - noise else -1 if rows["quadratic"][3] > rest + noise else 0)
    overfits = none[3] > none[5] + (none[4] or 0.0)
    verdict = AGREES if all(w > 0 for w in wins) else DIFFERS if all(w < 0 for w in wins) else PARTLY
    text = f"Test loss at the end, without dropout {none[3]:.3f}; " + "; ".join(words) + "."
    small = by_rate[rates[0]]["quadratic"]
    gain, noise = none[3] - small[3], max(none[4] or 0.0, small[4] or 0.0)
    helps = AGREES if gain > noise else DIFFERS if gain < -noise else PARTLY
    gain_text = (
        f"Quadratic dropout at rate {rates[0]:g} changes the test loss at the end by {-gain:+.3f}, "
        f"with a deviation over seeds of {noise:.3f}{': no more than noise' if helps == PARTLY else ''}."
    )
    if min(none[2], *(row[2] for rate in rates for row in by_rate[rate].values())) < 2:
        single = " One seed decides nothing."
        return Claim(*BEST, OPEN, text + single), Claim(*HELPS, OPEN, gain_text + single)
    if not overfits:
        why = (
            " Without dropout the test loss does not rise again, so there is nothing for dropout to "
            "mend and the claim is not judged."
        )
        return Claim(*BEST, OPEN, text + why), Claim(*HELPS, OPEN, gain_text)
    return Claim(*BEST, verdict, text), Claim(*HELPS, helps, gain_text)
