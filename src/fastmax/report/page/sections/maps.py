"""Attention maps: what models look at, how local it is, and the explorer (Figure 4)."""

from statistics import mean
from typing import Any

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
from fastmax.report.page.words import plus_minus

NAME = "maps"
TITLE = "Attention maps (Figure 4)"
LOCAL = ("Section 3.2, Figure 4", "Fastmax attention is less localized than standard attention.")
LEARNS = ("Figure 4", "Both mechanisms converge on training (MNIST, Tiny Shakespeare).")
ORDER = ("softmax", "fastmax2", "fastmax2, gated")
REAL = ("mnist", "shakespeare")
MEASURES = {"keys": "effective share of keys", "distance": "relative distance", "largest": "largest weight"}


def section(results: Results) -> Section:
    documents = sorted(
        results.get(NAME, []),
        key=lambda d: (data_of(d), ORDER.index(d["settings"]["attention"]), d["settings"]["seed"]),
    )
    if not documents:
        return Section(NAME, TITLE, claims=(untested(*LOCAL), untested(*LEARNS)))
    intro = (
        "Small Transformers on images, by patches, and on text, by characters. A map is what the "
        "attention makes of the identity in the place of the values, so it is "
        "the very matrix that was applied. The effective share of keys is exp of the entropy of "
        "a row over the number of keys that it sees: 1 if all weigh alike. The "
        "relative distance is the mean distance of what is looked at over that of equal weights."
    )
    table = learned(documents)
    charts = tuple(chart(found, data) for data, found in group(documents, data_of).items())
    local, learns = claims_of(table)
    findings = (local.finding, learns.finding)
    blocks = (Block("Locality of every head", charts, findings, (table, heads(documents))),)
    return Section(NAME, TITLE, intro, blocks, (local, learns), f"maps: {learns.evidence}", explorer(documents))


def data_of(document: Document) -> str:
    s = document["settings"]
    return str(s["data"] if "data" in s else s["text"])


def score(document: Document) -> tuple[str, float]:
    r = document["result"]
    return ("accuracy, %", 100 * r["accuracy"]) if "accuracy" in r else ("bits per character", r["bits_per_character"])


def _locality(document: Document, measure: str) -> list[float]:
    return [head[measure] for layer in document["result"]["locality"] for head in layer]


def learned(documents: list[Document]) -> Table:
    rows = []
    for (data, name), found in group(documents, lambda d: (data_of(d), d["settings"]["attention"])).items():
        what = score(found[0])[0]
        local = [spread([mean(_locality(d, measure)) for d in found])[0] for measure in MEASURES]
        rows.append((data, name, len(found), what, *spread([score(d)[1] for d in found]), *local))
    columns = ("data", "attention", "seeds", "score", "value", "±", *MEASURES.values())
    return Table(
        "maps",
        "What was learned, and how local the maps are, means over seeds, layers and heads",
        columns,
        tuple(rows),
        ("", "", "", "", ".2f", ".2f", ".3f", ".3f", ".3f"),
    )


def heads(documents: list[Document]) -> Table:
    rows = [
        (data_of(d), d["settings"]["attention"], d["settings"]["seed"], number + 1, h + 1, *(head[m] for m in MEASURES))
        for d in documents
        for number, layer in enumerate(d["result"]["locality"])
        for h, head in enumerate(layer)
    ]  # fmt: skip
    return Table(
        "maps-heads",
        "Every head",
        ("data", "attention", "seed", "layer", "head", *MEASURES.values()),
        tuple(rows),
        ("", "", "", "", "", ".3f", ".3f", ".3f"),
    )


def chart(documents: list[Document], data: str) -> Chart:
    series = []
    for name, found in group(documents, lambda d: d["settings"]["attention"]).items():
        points = [
            (head["distance"], head["keys"]) for d in found for layer in d["result"]["locality"] for head in layer
        ]
        x, y = zip(*points, strict=True)
        series.append(Series(name, x, y, line=False))
    return Chart(f"maps-locality-{data}", data, "relative distance", "effective share of keys", tuple(series))


def claims_of(table: Table) -> tuple[Claim, Claim]:
    wider, words, scores, close = [], [], [], []
    for data in dict.fromkeys(row[0] for row in table.rows):
        rows: dict[str, Any] = {row[1]: row for row in table.rows if row[0] == data}
        if not {"softmax", "fastmax2"} <= rows.keys():
            continue
        wider.append(rows["fastmax2"][6] > rows["softmax"][6])
        words.append(
            f"{data}: a row of Fastmax2 spreads over {100 * rows['fastmax2'][6]:.0f} % of the keys, "
            f"of softmax over {100 * rows['softmax'][6]:.0f} %"
        )
        what = rows["softmax"][3]
        scores.append(
            f"{data}, {what}: " + ", ".join(f"{name} {plus_minus(row[4], row[5])}" for name, row in rows.items())
        )
        gap = rows["fastmax2"][4] - rows["softmax"][4]
        close.append(gap > -1 if "accuracy" in what else gap < 0.05)
    if not wider:
        return untested(*LOCAL), untested(*LEARNS)
    verdict = AGREES if all(wider) else DIFFERS if not any(wider) else PARTLY
    learns = AGREES if all(close) else PARTLY
    if not {row[0] for row in table.rows} & set(REAL):  # generated data says nothing of the paper's
        verdict = learns = OPEN
    text = "; ".join(scores) + (
        ". Fastmax2 is within 1 point of accuracy and 0.05 bits of softmax."
        if all(close)
        else ". Where Fastmax2 learns less than softmax, both still converge."
    )
    return Claim(*LOCAL, verdict, "; ".join(words) + "."), Claim(*LEARNS, learns, text)


def explorer(documents: list[Document]) -> dict[str, Any]:
    """Samples and maps of the first seed, by data set and attention; maps are base64 of 16-bit weights."""
    found: dict[str, Any] = {}
    for d in documents:
        if "maps" in d["result"]:
            r = d["result"]
            kept = {"tokens": r["tokens"], "samples": r["samples"], "maps": r["maps"], "locality": r["locality"]}
            found.setdefault(data_of(d), {})[d["settings"]["attention"]] = kept
    return found
