"""Scale, order, decay: what language models learn with each."""

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
    untested,
)
from fastmax_lab.report.page.results import Results, group
from fastmax_lab.report.page.tuned import Tuned, compared, dots, edges, tuned

NAME = "language"
TITLE = "Scale, order and decay: language models (ours)"
SAME = ("Conclusion", "Fastmax has the same expressivity as softmax.")
PAPER = "fastmax2, paper's scale"
FORGETTING = ("decay", "gated")
REAL = ("shakespeare",)
"""Texts that nobody generated: the others say nothing of the paper's claim."""
EQUAL = 0.02
"""Nats per character that count as no difference."""


def section(results: Results) -> Section:
    measurements = results.get(NAME, [])
    if not measurements:
        return Section(NAME, TITLE, claims=(untested(*SAME),))
    blocks, judged, said = [], [], []
    for (text, tokens), found in group(measurements, lambda d: (d.settings["text"], d.settings["tokens"])).items():
        runs = tuned(found, _loss, _loss)
        if not runs:
            continue
        where = f"{text}, {tokens} tokens"
        name = f"language-{text}-{tokens}"
        table = compared(runs, name, f"Validation loss, {where}", "nats per character", decimals=3)
        rows = {row[0]: row for row in table.rows}
        chart = Chart(
            name, where, "validation loss, nats per character", "", (dots(table),),
            categories=tuple(rows), reference=rows["softmax"][2] if "softmax" in rows else None,
        )  # fmt: skip
        words = found_in(runs, where)
        verdict, why = judge(runs) if text in REAL else (OPEN, "")
        told = Finding(words)
        if PAPER in runs and words:
            judged.append((verdict, words + why))
            told = Finding(words + why, verdict, SAME[1])
        said += [words] if words else []
        notes = (told, Finding(edges(runs)))
        blocks.append(PageBlock(f"{where}, {found[0].settings['steps']} steps", (chart,), notes, (table,)))
    headline = f"language: {said[0]}" if said else ""
    return Section(NAME, TITLE, _intro(measurements), tuple(blocks), (claim_of(judged),), headline)


def _intro(measurements: list[Measurement]) -> str:
    s = measurements[0].settings
    return (
        f"FastmaxLM with {s['layers']} layers of width {s['width']}, {s['heads']} heads, rotary "
        "positions, equal steps, the same batches for all of a "
        "seed. Each attention has the learning rate that is best for it on the validation text "
        "with seed 0; what is reported is the loss on that same text, so it is a little too good, for all alike. "
        "The dotted line is softmax. Gaps are differences from softmax with the same seed. gated is a forget "
        "gate per token and head, decay one learned constant per head, standardized softmax takes "
        "standardized queries and keys. Without a word on it the scale is 1/√D, that of fastmax1 1/D; the paper's is 1."
    )


def _loss(measurement: Measurement) -> float:
    return float(measurement.values["val_loss"])


def found_in(runs: dict[str, Tuned], where: str) -> str:
    """The best Fastmax and softmax that forget, the best that does not, and the paper's; "" if there is no gap to tell."""
    gaps = {name: one.gap.mean for name, one in runs.items() if one.gap is not None and name != "softmax"}
    ours = sorted((name for name in gaps if name.startswith("fastmax")), key=gaps.__getitem__)
    if not ours:
        return ""
    words = f"on {where}, {ours[0]} is {gaps[ours[0]]:+.3f} nats from softmax"
    if "softmax, gated" in gaps:
        words += f", softmax, gated {gaps['softmax, gated']:+.3f}"
    if PAPER in gaps:
        words += f"; Fastmax2 as in the paper {gaps[PAPER]:+.3f}"
    plain = next((name for name in ours if not name.endswith(FORGETTING)), None)
    if plain is not None and plain not in (ours[0], PAPER):
        words += f"; the best Fastmax without decay is {plain}, {gaps[plain]:+.3f}"
    return words


def judge(runs: dict[str, Tuned]) -> tuple[str, str]:
    """Of the paper's Fastmax2 and softmax, tuned alike, over seeds: the verdict, and what stands in its way or limits it."""
    if PAPER not in runs or "softmax" not in runs:
        return OPEN, ""
    ours, softmax = runs[PAPER], runs["softmax"]
    if ours.gap is None or ours.gap.error is None:
        return OPEN, ". One seed decides nothing"
    if len(ours.rates) != len(softmax.rates):
        tried = f"{len(ours.rates)} learning rates were tried for it, {len(softmax.rates)} for softmax"
        return OPEN, f". That decides nothing: {tried}"
    if ours.gap.mean <= EQUAL:
        return AGREES, ""
    if ours.gap.side() <= 0:
        return OPEN, ". Undecided: the paper's Fastmax2 is behind by no more than noise"
    edge = ours.edge and not softmax.edge
    why = f". The paper's Fastmax2 has the {ours.edge} rate that was tried, so its gap is an upper estimate"
    return DIFFERS, why if edge else ""


def claim_of(judged: list[tuple[str, str]]) -> Claim:
    """Over all texts and lengths; those that decide nothing are told, and have no say."""
    if not judged:
        return untested(*SAME)
    verdicts = {verdict for verdict, _ in judged} - {OPEN}
    verdict = OPEN if not verdicts else PARTLY if len(verdicts) > 1 else verdicts.pop()
    words = ". ".join(words[:1].upper() + words[1:] for _, words in judged)
    return Claim(*SAME, verdict, f"{words}. Lower is better; negative is ahead of softmax.")
