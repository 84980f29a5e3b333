"""Scale, order and decay of language models."""

from dataclasses import replace
from statistics import mean

from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page.parts import (
    AGREES,
    DIFFERS,
    OPEN,
    PARTLY,
    Chart,
    Claim,
    Finding,
    PageBlock,
    Section,
    Series,
    untested,
)
from fastmax_lab.report.page.results import Results, group, spread
from fastmax_lab.report.page.tuned import Tuned, compared, dots, edges, tuned

NAME = "language"
TITLE = "Scale, order and decay: language models (ours)"
SAME = ("Conclusion", "Fastmax has the same expressivity as softmax.")
PAPER = "fastmax2, paper's scale"
REAL = ("shakespeare",)
"""Texts that were not generated. Generated ones do not decide the paper's claim."""
RATES = 3
"""Learning rates that both must have been tried at; one more may have been tried beyond the best."""
POINTS = 60
"""Number of points of a drawn curve."""
EQUAL = 0.02
"""Nats per character that count as no difference."""


def section(results: Results) -> Section:
    measurements = results.get(NAME, [])
    if not measurements:
        return Section(NAME, TITLE, claims=(untested(*SAME),))
    blocks: list[PageBlock] = []
    judged: list[Claim] = []
    said: list[str] = []
    for (text, tokens, steps), found in group(measurements, _setup).items():
        runs = tuned(found, _loss, _loss)
        if not runs:
            continue
        many = steps > min(d.settings["steps"] for d in measurements)
        where = f"{text}, {tokens} tokens" + (f", {steps:,} steps" if many else "")
        name = f"language-{text}-{tokens}" + (f"-{steps}" if many else "")
        table = compared(runs, name, f"Validation loss, {where}", "nats per character", decimals=3)
        rows = {row[0]: row for row in table.rows}
        chart = Chart(
            name, where, "validation loss, nats per character", "", dots(table),
            categories=tuple(rows), reference=rows["softmax"][2] if "softmax" in rows else None,
        )  # fmt: skip
        words = found_in(runs, where)
        own = judge(runs, f"{text}, {steps:,} steps" if many else where, name) if text in REAL else None
        judged += [] if own is None else [own]
        said += [words] if words else []
        findings = (*(() if own is None else own.findings), Finding(edges(runs)), Finding(gradients(found, runs)))
        title = f"{text}, {tokens} tokens, {steps:,} steps"
        blocks.append(PageBlock(title, (chart, *curves(found, runs, name, where)), findings, (table,)))
    headline = f"language: {said[0]}" if said else ""
    return Section(NAME, TITLE, _intro(measurements), tuple(blocks), (claim_of(judged),), headline)


def _setup(measurement: Measurement) -> tuple[str, int, int]:
    s = measurement.settings
    return s["text"], s["tokens"], s["steps"]


def curves(found: list[Measurement], runs: dict[str, Tuned], name: str, where: str) -> tuple[Chart, ...]:
    """Draw losses and gradient norms of the trainings at each attention's best rate, over seeds."""
    kinds = (
        ("loss_curve", "curves", f"{where}, smoothed", "training loss, nats"),
        ("gradient_norms", "gradients", f"{where}, before clipping", "norm of the gradient"),
    )
    return tuple(
        Chart(f"{name}-{ending}", title, "training steps", label, series, x_log=True, y_log=key == "gradient_norms")
        for key, ending, title, label in kinds
        if (series := _over_training(found, runs, key))
    )


def gradients(found: list[Measurement], runs: dict[str, Tuned]) -> str:
    """Return the largest norms of the gradient after the first tenth of the trainings of softmax and the paper's Fastmax2."""
    largest = {}
    for attention in ("softmax", PAPER):
        rate = runs[attention].rate if attention in runs else None
        own = [d for d in found if (d.settings["attention"], d.settings["lr"]) == (attention, rate)]
        curves = [curve for d in own if (curve := d.values.get("gradient_norms"))]
        if curves:
            largest[attention] = max(norm for curve in curves for _, norm in curve[len(curve) // 10 :])
    if len(largest) < 2:
        return ""
    softmax, ours = largest.values()
    return (
        "After the first tenth of the steps the largest norm of a gradient, at the best rate of each, is "
        f"{softmax:.2f} with softmax and {ours:.2f} with Fastmax2 at the paper's scale."
    )


def _over_training(found: list[Measurement], runs: dict[str, Tuned], key: str) -> tuple[Series, ...]:
    """Return the mean and standard deviation over seeds of what was noted in trainings, at most `POINTS` of each."""
    series = []
    for attention, one in runs.items():
        own = [d for d in found if (d.settings["attention"], d.settings["lr"]) == (attention, one.rate)]
        points = list(zip(*(_fewer(d.values[key]) for d in own if key in d.values), strict=False))
        if points:
            steps = tuple(float(at[0][0]) for at in points)
            middle, deviation = zip(*(spread([value for _, value in at]) for at in points), strict=True)
            series.append(Series(attention, steps, middle, deviation))
    return tuple(series)


def _fewer(points: list[list[float]]) -> list[tuple[float, float]]:
    """Return the means of as many points in a row as leave no more than `POINTS`."""
    size = -(-len(points) // POINTS)
    parts = [points[i : i + size] for i in range(0, len(points), size)] if points else []
    return [(part[-1][0], mean(value for _, value in part)) for part in parts]


def _intro(measurements: list[Measurement]) -> str:
    s = measurements[0].settings
    return (
        f"FastmaxLM with {s['layers']} layers of width {s['width']}, {s['heads']} heads, rotary "
        "positions, equal steps, the same batches for all of a "
        "seed. Each attention has the learning rate that is best for it on the validation text "
        "with seed 0; what is reported is the loss on that same text, so it is a little too good, for all alike. "
        "The dotted line is softmax. Gaps are differences from softmax with the same seed. gated is a forget "
        "gate per token and head, decay one learned constant per head, standardized softmax takes "
        "standardized queries and keys. If no scale is named it is 1/√D, that of fastmax1 1/D; the paper's is 1."
    )


def _loss(measurement: Measurement) -> float:
    return float(measurement.values["val_loss"])


def found_in(runs: dict[str, Tuned], where: str) -> str:
    """Return the gap of the best Fastmax in words, or "" if there is no gap."""
    gaps = {name: one.gap.mean for name, one in runs.items() if one.gap is not None and name != "softmax"}
    ours = sorted((name for name in gaps if name.startswith("fastmax")), key=gaps.__getitem__)
    if not ours:
        return ""
    return f"on {where}, {ours[0]} is {gaps[ours[0]]:+.3f} nats from softmax"


def judge(runs: dict[str, Tuned], where: str, table: str) -> Claim | None:
    """Judge the paper's Fastmax2 beside softmax, tuned alike, over seeds, on one text and length."""
    if PAPER not in runs or runs[PAPER].gap is None:
        return None
    ours, softmax = runs[PAPER], runs["softmax"]
    assert ours.gap is not None
    number = f"{where}: {ours.gap.mean:+.3f} nats{ours.gap.noise(3)}"
    verdict, notes = OPEN, ("Lower is better; a negative gap is ahead of softmax.",)
    if ours.gap.error is None:
        notes = ("One seed decides nothing.",)
    elif len(set(ours.rates) & set(softmax.rates)) < min(len(softmax.rates), RATES):
        tried = f"{len(ours.rates)} learning rates were tried for Fastmax2, {len(softmax.rates)} for softmax"
        notes = (f"That decides nothing: {tried}.",)
    elif ours.gap.mean <= EQUAL:
        verdict = AGREES
    elif ours.gap.side() <= 0:
        notes = ("The paper's Fastmax2 is behind by no more than noise.",)
    else:
        verdict = DIFFERS
        if ours.edge and not softmax.edge:
            notes = (f"The paper's Fastmax2 has the {ours.edge} rate that was tried, so its gap is an upper estimate.",)
    return Claim(*SAME, verdict, number, notes, table, ours.gap.seeds)


def claim_of(judged: list[Claim]) -> Claim:
    """Join the verdicts over all texts and lengths. Open ones do not count."""
    if not judged:
        return untested(*SAME)
    decided = [one for one in judged if one.verdict != OPEN]
    first = (decided or judged)[0]
    return replace(first, verdict=PARTLY) if len({one.verdict for one in decided}) > 1 else first
