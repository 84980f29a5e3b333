"""Attention maps: how local the attention of trained models is, and the explorer (Figure 4)."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from statistics import mean
from typing import Any, NamedTuple

from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page.map_panel import Panel, map_of, typical
from fastmax_lab.report.page.parts import (
    AGREES,
    DIFFERS,
    OPEN,
    PARTLY,
    Chart,
    Claim,
    Finding,
    LeadFigure,
    PageBlock,
    Section,
    Series,
    Table,
    untested,
)
from fastmax_lab.report.page.results import Results, group, spread
from fastmax_lab.report.page.tuned import Gap, gap
from fastmax_lab.report.page.words import listed

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
    "The same layer of each model, seed 0, on the first sample: above the head in the middle of the layer by its effective "
    "share of keys (of two, the more local one), below every head. The maps of a figure are on one scale of colours, which "
    "goes by the square root."
)
RULE = "Converged is: a training loss that is at most two standard errors above that of softmax."
TYPICAL = "maps-panel-"
"""The names of the panels of one head each begin so."""
MEASURES = {"keys": "effective share of keys", "distance": "relative distance", "largest": "largest weight"}


def section(results: Results) -> Section:
    measurements = sorted(
        at_best_rates(results.get(NAME, [])),
        key=lambda d: (data_of(d), ORDER.index(d.settings["attention"]), d.settings["seed"]),
    )
    if not measurements:
        return Section(NAME, TITLE, claims=(untested(*LOCAL), untested(*LEARNS)))
    intro = (
        "Small Transformers on images, by patches, and on text, by characters. "
        "Figure 4 has Fastmax2 at scale 1, here called paper's scale; fastmax2 and fastmax2, gated have 1/√D. "
        "A map is the output of the attention for the identity instead of the values, so it is "
        "the very matrix that was applied. The effective share of keys is exp of the entropy of "
        "a row over the number of keys that it sees: 1 if all weigh alike. The "
        "relative distance is the mean distance of the keys by weight over that of equal weights. "
        "Softmax and Fastmax2 at the paper's scale have the best of four learning rates, by the held-out loss of seed 0."
    )
    charts = tuple(chart(found, data) for data, found in group(measurements, data_of).items())
    local, learns = local_claim(measurements), learns_claim(measurements)
    drawn = panels(measurements)
    leads = _leads(measurements, drawn)
    tables = (learned(measurements), losses(measurements), heads(measurements), models(measurements))
    blocks = (
        PageBlock("Softmax beside Fastmax2", drawn, (Finding(CHOSEN),), columns=2),
        PageBlock("Locality of every head", charts, (*local.findings, *learns.findings), tables),
    )
    headline = f"maps: {local.number}"
    return Section(NAME, TITLE, intro, blocks, (local, learns), headline, leads, explorer(measurements))


def _leads(measurements: list[Measurement], drawn: tuple[Panel, ...]) -> tuple[LeadFigure, ...]:
    """Draw the maps on text if there are any, and say which of the two spreads wider there."""
    by_data = {panel.name.removeprefix(TYPICAL): panel for panel in drawn if panel.name.startswith(TYPICAL)}
    data = next((data for data in reversed(REAL) if data in by_data), next(iter(by_data), None))
    if data is None:
        return ()
    panel = by_data[data]
    shares = _by_seed([d for d in measurements if data_of(d) == data], lambda d: mean(_locality(d, "keys")))
    ours, softmax = (mean(shares[name].values()) for name in (PAPER, "softmax"))
    wider = "more" if ours > softmax else "fewer"
    return (
        LeadFigure(
            replace(panel, name=f"{panel.name}-lead"),
            f"The weights of Fastmax2 spread over {wider} keys than those of softmax, mean over all heads",
        ),
    )


def models(measurements: list[Measurement]) -> Table:
    """Return the size of the models and of the first training of each data set."""
    rows = []
    for data, found in group(measurements, data_of).items():
        s = found[0].settings
        m = s.get("model", s)
        width = m.get("dim", m.get("width"))
        seen = f"{s['batch']} images" if "model" in s else f"{s['batch']} x {s['tokens']} characters"
        rows.append((data, m["layers"], f"{m['heads']} of {width // m['heads']}", s["steps"], seen))
    columns = ("data", "layers", "heads", "steps", "batch")
    return Table("maps-models", "The models and their trainings", columns, tuple(rows), ("", "", "", ","))


def panels(measurements: list[Measurement]) -> tuple[Panel, ...]:
    """Return the typical heads of each data set that has maps of both, lettered, then every head of the layer."""
    both = {}
    for data, found in group(measurements, data_of).items():
        own = {d.settings["attention"]: d for d in found if "maps" in d.values}
        if {"softmax", PAPER} <= own.keys():
            both[data] = (own["softmax"], own[PAPER])
    if not both:
        return ()
    layer = min(len(d.values["maps"]) for pair in both.values() for d in pair) - 1  # the last that all have
    letters = iter("abcdefgh")
    single, whole = [], []
    for data, pair in both.items():
        names = [d.settings["attention"] for d in pair]
        chosen = [
            map_of(d, layer, typical(d, layer), f"({next(letters)}) {name}")
            for d, name in zip(pair, names, strict=True)
        ]
        heads = len(pair[0].values["locality"][layer])
        every = [map_of(d, layer, head, name) for d, name in zip(pair, names, strict=True) for head in range(heads)]
        title = f"{data}, layer {layer + 1}"
        single.append(Panel(f"{TYPICAL}{data}", title, "key", "query", (), maps=tuple(chosen)))
        whole.append(
            Panel(f"maps-heads-{data}", f"{title}, every head", "key", "query", (), maps=tuple(every), across=heads)
        )
    return (*single, *whole)


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
        "Scores, and how local the maps are, means over seeds, layers and heads",
        columns,
        tuple(rows),
        ("", "", "", "", ".3f", ".3f", ".3f", ".3f", ".3f"),
    )


def at_best_rates(measurements: list[Measurement]) -> list[Measurement]:
    """Return the runs of each attention on each data set at the rate that had the least held-out loss with seed 0."""
    result = []
    for found in group(measurements, lambda d: (data_of(d), d.settings["attention"])).values():
        first = [d for d in found if d.settings["seed"] == 0]
        loss = "test_loss" if "test_loss" in found[0].values else "val_loss"
        best = min(first, key=lambda d: float(d.values[loss]), default=found[0]).settings["lr"]
        result += [d for d in found if d.settings["lr"] == best]
    return result


def losses(measurements: list[Measurement]) -> Table:
    rows = []
    for (data, name), found in group(measurements, lambda d: (data_of(d), d.settings["attention"])).items():
        rows.append((data, name, len(found), *spread([d.values["train_loss"] for d in found])))
    columns = ("data", "attention", "seeds", "training loss", "±")
    return Table("maps-loss", "Training loss at the end, nats", columns, tuple(rows), ("", "", "", ".3f", ".3f"))


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
    """Judge by the share of keys, at the paper's scale, in pairs of the same seed: below two standard errors it is open."""
    pairs = _pairs(measurements, lambda d: mean(_locality(d, "keys")))
    if not pairs:
        return untested(*LOCAL)
    judged = {data: pair for data, pair in pairs.items() if data in REAL}
    most = max((judged or pairs).values(), key=lambda pair: abs(pair.gap.mean))
    spreads = (
        f"a row spreads over {100 * most.ours:.0f} % of the keys against {100 * most.softmax:.0f} % on {most.data}"
    )
    number = spreads + most.gap.noise(1, unit=100)
    notes = [SCALES] + [
        f"On {data} the difference is {'of one seed' if pair.gap.error is None else 'within the noise'}."
        for data, pair in judged.items()
        if not pair.gap.side()
    ]
    notes += _missing(judged)
    sides = [pair.gap.side() for pair in judged.values()]
    verdict = AGREES if min(sides, default=0) > 0 else DIFFERS if max(sides, default=0) < 0 else PARTLY
    is_open = len(judged) < len(REAL) or not any(sides)
    return Claim(*LOCAL, OPEN if is_open else verdict, number, tuple(notes), "maps", most.gap.seeds)


def learns_claim(measurements: list[Measurement]) -> Claim:
    """Judge by the training loss at the end: it may be at most two standard errors above that of softmax."""
    pairs = _pairs(measurements, lambda d: d.values["train_loss"])
    if not pairs:
        return untested(*LEARNS)
    judged = {data: pair for data, pair in pairs.items() if data in REAL and pair.gap.error is not None}
    most = max((judged or pairs).values(), key=lambda pair: pair.gap.mean)
    number = f"training loss on {most.data}: {most.ours:.3f} against {most.softmax:.3f}{most.gap.noise(3)}"
    converged = [pair.gap.side() <= 0 for pair in judged.values()]
    verdict = AGREES if all(converged) else PARTLY if any(converged) else DIFFERS
    notes = (RULE, *_missing(judged))
    is_open = len(judged) < len(REAL)
    return Claim(*LEARNS, OPEN if is_open else verdict, number, notes, "maps-loss", most.gap.seeds)


class PairedMeans(NamedTuple):
    """The means of Fastmax2 at the paper's scale and of softmax on one data set, and their difference in pairs of seeds."""

    data: str
    ours: float
    softmax: float
    gap: Gap


def _pairs(measurements: list[Measurement], value: Callable[[Measurement], float]) -> dict[str, PairedMeans]:
    pairs = {}
    for data, found in group(measurements, data_of).items():
        values = _by_seed(found, value)
        difference = gap(values.get(PAPER, {}), values.get("softmax", {}))
        if difference is not None:
            ours, softmax = (mean(values[name].values()) for name in (PAPER, "softmax"))
            pairs[data] = PairedMeans(data, ours, softmax, difference)
    return pairs


def _by_seed(measurements: list[Measurement], value: Callable[[Measurement], float]) -> dict[str, dict[int, float]]:
    """Return the value of each attention and seed."""
    found = group(measurements, lambda d: d.settings["attention"])
    return {name: {d.settings["seed"]: value(d) for d in own} for name, own in found.items()}


def _missing(found: Iterable[str]) -> list[str]:
    names = [data for data in REAL if data not in found]
    if not names:
        return []
    return [
        f"Not judged: softmax and Fastmax2 at the paper's scale were not both trained on {listed(names)}, with several seeds."
    ]


def explorer(measurements: list[Measurement]) -> dict[str, Any]:
    """Return samples and maps of the first seed, by data set and attention; maps are base64 of 16-bit weights."""
    found: dict[str, Any] = {}
    for d in measurements:
        if "maps" in d.values:
            r = d.values
            kept = {"tokens": r["tokens"], "samples": r["samples"], "maps": r["maps"], "locality": r["locality"]}
            found.setdefault(data_of(d), {})[d.settings["attention"]] = kept
    return found
