"""Attention maps: what models look at, how local it is, and the explorer (Figure 4)."""

from collections.abc import Callable, Iterable
from statistics import mean
from typing import Any

from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page.map_panel import Panel, typical
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
    Table,
    untested,
)
from fastmax_lab.report.page.results import Results, group, spread
from fastmax_lab.report.page.tuned import Gap, gap
from fastmax_lab.report.page.words import listed, plus_minus

NAME = "maps"
TITLE = "Attention maps (Figure 4)"
LOCAL = ("Section 3.2, Figure 4", "Fastmax attention is less localized than standard attention.")
LEARNS = ("Figure 4", "Both mechanisms converge on training (MNIST, Tiny Shakespeare).")
PAPER = "fastmax2, paper's scale"
ORDER = ("softmax", PAPER, "fastmax2", "fastmax2, gated")
REAL = ("mnist", "shakespeare")
"""Generated data decides no claim of the paper."""
SCALES = "Judged by the paper's scale, 1; a smaller one, as fastmax2 has here, makes weights more alike by itself."
CHOSEN = (
    "Of each model, seed 0, the head in the middle of all by its effective share of keys (of two, the more local one), on "
    "the first sample. Both maps of a data set are on one scale of colours, which goes by the square root."
)
RULE = "Converged is: a training loss that is at most two standard errors above that of softmax."
MEASURES = {"keys": "effective share of keys", "distance": "relative distance", "largest": "largest weight"}


def section(results: Results) -> Section:
    measurements = sorted(
        results.get(NAME, []),
        key=lambda d: (data_of(d), ORDER.index(d.settings["attention"]), d.settings["seed"]),
    )
    if not measurements:
        return Section(NAME, TITLE, claims=(untested(*LOCAL), untested(*LEARNS)))
    intro = (
        f"Small Transformers on images, by patches, and on text, by characters: {_sizes(measurements)}. "
        "Figure 4 has Fastmax2 at scale 1, here called paper's scale; fastmax2 and fastmax2, gated have 1/√D. "
        "A map is what the attention makes of the identity in the place of the values, so it is "
        "the very matrix that was applied. The effective share of keys is exp of the entropy of "
        "a row over the number of keys that it sees: 1 if all weigh alike. The "
        "relative distance is the mean distance of what is looked at over that of equal weights."
    )
    table = learned(measurements)
    charts = tuple(chart(found, data) for data, found in group(measurements, data_of).items())
    local, learns = local_claim(measurements), learns_claim(measurements)
    findings = (local.finding, learns.finding)
    blocks = (
        PageBlock("Softmax beside Fastmax2", panels(measurements), (Finding(CHOSEN),)),
        PageBlock("Locality of every head", charts, findings, (table, heads(measurements))),
    )
    return Section(NAME, TITLE, intro, blocks, (local, learns), f"maps: {local.evidence}", explorer(measurements))


def _sizes(measurements: list[Measurement]) -> str:
    """Of the first run of each data set."""
    parts = []
    for data, found in group(measurements, data_of).items():
        s = found[0].settings
        m = s.get("model", s)
        width = m.get("dim", m.get("width"))
        seen = f"{s['batch']} images" if "model" in s else f"{s['batch']} x {s['tokens']} characters"
        tokens = max((d.values.get("tokens", 0) for d in found), default=0)
        parts.append(
            f"{data}, {m['layers']} layers, {m['heads']} heads of {width // m['heads']}, {s['steps']:,} steps of {seen}"
            + (f", maps of {tokens} tokens" if tokens else "")
        )
    return "; ".join(parts)


def panels(measurements: list[Measurement]) -> tuple[Panel, ...]:
    """One for each data set that has maps of both."""
    result = []
    for data, found in group(measurements, data_of).items():
        own = {d.settings["attention"]: d for d in found if "maps" in d.values}
        if {"softmax", PAPER} <= own.keys():
            maps = (typical(own["softmax"]), typical(own[PAPER]))
            result.append(Panel(f"maps-panel-{data}", data, "key", "query", (), maps=maps))
    return tuple(result)


def data_of(measurement: Measurement) -> str:
    s = measurement.settings
    return str(s["data"] if "data" in s else s["text"])


def score(measurement: Measurement) -> tuple[str, float]:
    r = measurement.values
    return ("accuracy, %", 100 * r["accuracy"]) if "accuracy" in r else ("bits per character", r["bits_per_character"])


def _locality(measurement: Measurement, measure: str) -> list[float]:
    return [head[measure] for layer in measurement.values["locality"] for head in layer]


def learned(measurements: list[Measurement]) -> Table:
    rows = []
    for (data, name), found in group(measurements, lambda d: (data_of(d), d.settings["attention"])).items():
        what = score(found[0])[0]
        local = [spread([mean(_locality(d, measure)) for d in found])[0] for measure in MEASURES]
        rows.append((data, name, len(found), what, *spread([score(d)[1] for d in found]), *local))
    columns = ("data", "attention", "seeds", "score", "value", "±", *MEASURES.values())
    return Table(
        "maps",
        "What was learned, and how local the maps are, means over seeds, layers and heads",
        columns,
        tuple(rows),
        ("", "", "", "", ".3f", ".3f", ".3f", ".3f", ".3f"),
    )


def heads(measurements: list[Measurement]) -> Table:
    rows = [
        (data_of(d), d.settings["attention"], d.settings["seed"], number + 1, h + 1, *(head[m] for m in MEASURES))
        for d in measurements
        for number, layer in enumerate(d.values["locality"])
        for h, head in enumerate(layer)
    ]  # fmt: skip
    return Table(
        "maps-heads",
        "Every head",
        ("data", "attention", "seed", "layer", "head", *MEASURES.values()),
        tuple(rows),
        ("", "", "", "", "", ".3f", ".3f", ".3f"),
    )


def chart(measurements: list[Measurement], data: str) -> Chart:
    series = []
    for name, found in group(measurements, lambda d: d.settings["attention"]).items():
        points = [(head["distance"], head["keys"]) for d in found for layer in d.values["locality"] for head in layer]
        x, y = zip(*points, strict=True)
        series.append(Series(name, x, y, line=False))
    return Chart(f"maps-locality-{data}", data, "relative distance", "effective share of keys", tuple(series))


def local_claim(measurements: list[Measurement]) -> Claim:
    """By the share of keys, at the paper's scale, in pairs of the same seed: below two standard errors it is open."""
    sides, words = {}, []
    for data, found in group(measurements, data_of).items():
        shares = _by_seed(found, lambda d: mean(_locality(d, "keys")))
        difference = gap(shares.get(PAPER, {}), shares.get("softmax", {}))
        if difference is None:
            continue
        sides[data] = difference.side()
        words.append(f"{data}: {_shares(shares)}{_doubt(difference)}")
    if not words:
        return untested(*LOCAL)
    real = [sides[data] for data in REAL if data in sides]
    text = f"{'; '.join(words)}. {SCALES}"
    if len(real) < len(REAL):
        return Claim(*LOCAL, OPEN, f"{text} {_missing(sides)}")
    if not any(real):
        return Claim(*LOCAL, OPEN, f"{text} Undecided.")
    return Claim(*LOCAL, AGREES if min(real) > 0 else DIFFERS if max(real) < 0 else PARTLY, text)


def learns_claim(measurements: list[Measurement]) -> Claim:
    """Converged: the training loss at the end is at most two standard errors above that of softmax."""
    judged: dict[str, bool] = {}
    words = []
    for data, found in group(measurements, data_of).items():
        losses = _by_seed(found, lambda d: d.values["train_loss"])
        if not {PAPER, "softmax"} <= losses.keys():
            continue
        behind = gap(losses[PAPER], losses["softmax"])
        if behind is not None and behind.error is not None and data in REAL:
            judged[data] = behind.side() <= 0
        words.append(f"{data}: training loss at the end, {_pair(losses)}{_far(behind)}; {_parity(found)}")
    if not words:
        return untested(*LEARNS)
    text = ". ".join(words) + "."
    if len(judged) < len(REAL):
        return Claim(*LEARNS, OPEN, f"{text} {_missing(judged)}")
    every = judged.values()
    return Claim(*LEARNS, AGREES if all(every) else PARTLY if any(every) else DIFFERS, f"{text} {RULE}")


def _by_seed(measurements: list[Measurement], value: Callable[[Measurement], float]) -> dict[str, dict[int, float]]:
    """By attention and seed."""
    found = group(measurements, lambda d: d.settings["attention"])
    return {name: {d.settings["seed"]: value(d) for d in own} for name, own in found.items()}


def _shares(shares: dict[str, dict[int, float]]) -> str:
    means = {name: f"{100 * mean(of.values()):.0f} %" for name, of in shares.items()}
    text = f"a row of Fastmax2 spreads over {means[PAPER]} of the keys, of softmax over {means['softmax']}"
    return text + (f", of Fastmax2 at scale 1/√D over {means['fastmax2']}" if "fastmax2" in means else "")


def _doubt(difference: Gap) -> str:
    """Of the first two."""
    if difference.side():
        return ""
    return " (one seed)" if difference.error is None else " (the first two differ by no more than noise)"


def _parity(measurements: list[Measurement]) -> str:
    """Beside the verdict: how well what was learned serves on data that was held out."""
    what = score(measurements[0])[0]
    values = _by_seed(measurements, lambda d: score(d)[1])
    return f"held-out {what}, {_pair(values)}{_far(gap(values[PAPER], values['softmax']))}"


def _far(found: Gap | None) -> str:
    if found is None:
        return ""
    error = "" if found.error is None else f", standard error {found.error:.3f}"
    return f" (gap {found.mean:+.3f}{error})"


def _pair(values: dict[str, dict[int, float]]) -> str:
    ours, softmax = (plus_minus(*spread(list(values[name].values())), digits=3) for name in (PAPER, "softmax"))
    return f"Fastmax2 {ours}, softmax {softmax}"


def _missing(found: Iterable[str]) -> str:
    names = listed([data for data in REAL if data not in found])
    return (
        f"Not judged: softmax and Fastmax2 at the paper's scale were not both trained on {names}, with several seeds."
    )


def explorer(measurements: list[Measurement]) -> dict[str, Any]:
    """Samples and maps of the first seed, by data set and attention; maps are base64 of 16-bit weights."""
    found: dict[str, Any] = {}
    for d in measurements:
        if "maps" in d.values:
            r = d.values
            kept = {"tokens": r["tokens"], "samples": r["samples"], "maps": r["maps"], "locality": r["locality"]}
            found.setdefault(data_of(d), {})[d.settings["attention"]] = kept
    return found
