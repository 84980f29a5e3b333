"""Dropout: the ways of dropping factorized terms compared (Figure 2)."""

from collections.abc import Hashable

from fastmax_lab.measurements import Measurement, slug
from fastmax_lab.report.page.parts import (
    AGREES,
    DIFFERS,
    OPEN,
    PARTLY,
    Chart,
    Claim,
    PageBlock,
    Section,
    Series,
    Table,
    untested,
)
from fastmax_lab.report.page.results import Results, group, spread
from fastmax_lab.report.page.tuned import Gap, gap

NAME = "dropout"
TITLE = "Dropout (Figure 2)"
BEST = ("Section 2.4, Figure 2", "Dropout of the quadratic terms alone is the most effective way.")
UNFINISHED = "too little of it was measured in this folder"
PAPER = "fastmax2, paper's scale"
WAYS = ("standard", "1d", "quadratic")
HELPS = ("Figure 2", "Even small amounts of dropout on the quadratic term benefit test generalization.")


def section(results: Results) -> Section:
    every = results.get(NAME, [])
    if not every:
        return Section(NAME, TITLE, claims=(untested(*BEST), untested(*HELPS)))
    setups = group(every, _setup)
    most = max(setups, key=lambda setup: len(setups[setup]))
    kept = group(setups[most], _attention)
    judged = PAPER if _is_judged(kept.get(PAPER, [])) else next(iter(kept))
    s = kept[judged][0].settings
    intro = (
        f"A classifier of images ({s['data']}) trained on only {s['examples']:,} of them, so that it overfits; "
        f"test loss on {s['tested']:,}, mean and standard deviation over seeds. standard drops entries of all features, "
        "1d whole tokens, quadratic features of degree 2 only."
    )
    left_out = len(every) - len(setups[most])
    if left_out:
        intro += f" Left out: {left_out} runs of other sizes, such as of another budget."
    claims = claims_of(kept[judged], judged)
    names = sorted(kept, key=lambda name: name != judged)
    blocks = tuple(_block(name, kept[name]) for name in names)
    return Section(NAME, TITLE, intro, blocks, claims, _headline(summary(kept[judged], judged)))


def _attention(measurement: Measurement) -> str:
    return str(measurement.settings.get("attention", "fastmax2"))


def _is_judged(measurements: list[Measurement]) -> bool:
    """Return True if the runs at the paper's scale are enough for its claims: several seeds without and with dropout."""
    modes = group(measurements, lambda d: d.settings["mode"])
    return all(len({d.settings["seed"] for d in modes.get(mode, [])}) > 1 for mode in ("none", "quadratic", "1d"))


def _block(name: str, measurements: list[Measurement]) -> PageBlock:
    rates = sorted({d.settings["rate"] for d in measurements} - {0.0})
    charts = tuple(chart(measurements, rate, name) for rate in rates)
    seeds = len({d.settings["seed"] for d in measurements})
    findings = tuple(finding for claim in claims_of(measurements, name) for finding in claim.findings)
    return PageBlock(f"{name}, {seeds} seeds", charts, findings, (summary(measurements, name),))


def _named(name: str) -> str:
    """Return the name of a table or figure of an attention's runs; that of fastmax2 has none."""
    return slug("dropout", name.removeprefix("fastmax2").replace("'s", ""))


def _setup(measurement: Measurement) -> Hashable:
    """Return the settings that runs have to share to be compared."""
    own = ("mode", "rate", "seed", "attention")
    return tuple(sorted((name, str(value)) for name, value in measurement.settings.items() if name not in own))


def _headline(table: Table) -> str:
    losses = {(row[0], row[1]): row[3] for row in table.rows}
    (way, rate), lowest = min(losses.items(), key=lambda item: item[1])
    if way == "none":
        return f"dropout: the test loss is lowest, {lowest:.3f}, without any"
    without = "".join(f"; without dropout {loss:.3f}" for (other, _), loss in losses.items() if other == "none")
    return f"dropout: the lowest test loss, {lowest:.3f}, has {way} at rate {rate:g}{without}"


def chart(measurements: list[Measurement], rate: float, attention: str = "fastmax2") -> Chart:
    series = []
    for mode, found in group(
        (d for d in measurements if d.settings["rate"] in (0.0, rate)), lambda d: d.settings["mode"]
    ).items():
        looks = list(zip(*(d.values["curve"] for d in found), strict=False))  # those that all have
        points = [spread([point[1] for point in look]) for look in looks]
        steps = tuple(look[0][0] for look in looks)
        series.append(Series(mode, steps, tuple(p[0] for p in points), tuple(p[1] for p in points)))
    order = ("none", *WAYS)
    series.sort(key=lambda one: order.index(one.label))
    name, title = f"{_named(attention)}-{rate:g}", f"{attention}, rate {rate:g}"
    return Chart(name, title, "training steps", "test loss, nats", tuple(series))


def summary(measurements: list[Measurement], attention: str = "fastmax2") -> Table:
    rows = []
    for (mode, rate), found in group(measurements, lambda d: (d.settings["mode"], d.settings["rate"])).items():
        last = spread([d.values["test_loss"] for d in found])
        lowest = spread([min(point[1] for point in d.values["curve"]) for d in found])
        accuracy = spread([100 * d.values["accuracy"] for d in found])
        rows.append((mode, rate, len(found), *last, *lowest, *accuracy))
    rows.sort(key=lambda row: (row[1], row[0]))
    columns = ("way", "rate", "seeds", "test loss at the end", "±", "lowest test loss", "± ", "accuracy, %", "±  ")
    return Table(
        _named(attention),
        f"Test loss of each way and rate, {attention}",
        columns,
        tuple(rows),
        ("", "g", "", ".3f", ".3f", ".3f", ".3f", ".1f", ".1f"),
    )


Losses = dict[tuple[str, float], dict[int, float]]
"""Test losses by way and rate, and by seed."""


def claims_of(measurements: list[Measurement], attention: str = "fastmax2") -> tuple[Claim, Claim]:
    """Judge by the test loss at the end, in pairs of the same seed: a difference below two standard errors decides nothing.

    A rate counts for the best way where quadratic and 1d were measured at it.
    """
    by_way = group(measurements, lambda d: (d.settings["mode"], d.settings["rate"]))
    losses = {way: {d.settings["seed"]: d.values["test_loss"] for d in found} for way, found in by_way.items()}
    none = by_way.get(("none", 0.0), [])
    lowest = {d.settings["seed"]: min(point[1] for point in d.values["curve"]) for d in none}
    rise = gap(losses.get(("none", 0.0), {}), lowest)
    if rise is None:
        return untested(*BEST, UNFINISHED), untested(*HELPS, UNFINISHED)
    table = _named(attention)
    return _best(losses, rise, _accuracies(measurements), table), _helps(losses, rise, table)


def _best(losses: Losses, rise: Gap, accuracies: str, table: str) -> Claim:
    rates = sorted({rate for _, rate in losses if all((way, rate) in losses for way in ("quadratic", "1d"))})
    if not rates:
        return untested(*BEST, UNFINISHED)
    sides, behind = [], []
    for rate in rates:
        others = [way for way in WAYS if way != "quadratic" and (way, rate) in losses]
        gaps = [gap(losses["quadratic", rate], losses[way, rate]) for way in others]
        sides.append(max(0 if one is None else one.side() for one in gaps))  # 1: another way is clearly better
        far, way = max(((one.mean, way) for one, way in zip(gaps, others, strict=True) if one), default=(0.0, ""))
        error = next((one.noise(3) for one, other in zip(gaps, others, strict=True) if one and other == way), "")
        behind.append((far, f"test loss at rate {rate:g}: quadratic {far:+.3f} from {way}{error}"))
    number = max(behind, key=lambda one: abs(one[0]))[1]
    verdict, notes = OPEN, [accuracies]
    if rise.side() <= 0:
        notes.append(_calm(rise))
    elif all(side < 0 for side in sides):
        verdict = AGREES
    elif any(side < 0 for side in sides):
        verdict = PARTLY
    elif any(side > 0 for side in sides):
        verdict = DIFFERS
    else:
        notes.append("Which way is best is open: they differ by no more than noise.")
    seeds = min(len(losses[way, rate]) for way in ("quadratic", "1d") for rate in rates)
    return Claim(*BEST, verdict, number, tuple(notes), table, seeds)


def _helps(losses: Losses, rise: Gap, table: str) -> Claim:
    """Judge by the smallest rate, because the paper speaks of small amounts."""
    rate = min((rate for way, rate in losses if way == "quadratic"), default=None)
    found = None if rate is None else gap(losses["quadratic", rate], losses["none", 0.0])
    if found is None:
        return untested(*HELPS, UNFINISHED)
    number = f"test loss at rate {rate:g} changes by {found.mean:+.3f}{found.noise(3)}"
    verdict = OPEN if rise.side() <= 0 or found.side() == 0 else AGREES if found.side() < 0 else DIFFERS
    notes = (_calm(rise),) if rise.side() <= 0 else ()
    return Claim(*HELPS, verdict, number, notes, table, found.seeds)


def _calm(rise: Gap) -> str:
    if rise.error is None:
        return "One seed decides nothing."
    return "Not judged: without dropout the test loss does not clearly rise again, so dropout has nothing to improve."


def _accuracies(measurements: list[Measurement]) -> str:
    """Describe the range of the accuracies of all ways and rates."""
    ways = group(measurements, lambda d: (d.settings["mode"], d.settings["rate"])).values()
    found = [spread([100 * d.values["accuracy"] for d in own]) for own in ways]
    low, high = min(one[0] for one in found), max(one[0] for one in found)
    noise = max(one[1] or 0.0 for one in found)
    alike = ": they hardly differ" if high - low < 2 * noise else ""
    return f"Accuracies are {low:.1f} to {high:.1f} %, with deviations over seeds of up to {noise:.1f}{alike}."
