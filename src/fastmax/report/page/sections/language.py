"""Scale, order, decay: what language models learn with each."""

from fastmax.report.page.documents import Document, Results, group
from fastmax.report.page.parts import (
    AGREES,
    DIFFERS,
    OPEN,
    Block,
    Chart,
    Claim,
    Finding,
    Section,
    Table,
    untested,
)
from fastmax.report.page.tuned import compared, dots

NAME = "language"
TITLE = "Scale, order and decay: language models (ours)"
SAME = ("Conclusion", "Fastmax has the same expressivity as softmax.")
PLAIN = ("softmax", "fastmax1", "fastmax2", "fastmax2, paper's scale")


def section(results: Results) -> Section:
    documents = results.get(NAME, [])
    if not documents:
        return Section(NAME, TITLE, claims=(untested(*SAME),))
    blocks, claims, headline = [], [], ""
    for (text, tokens), found in group(documents, lambda d: (d["settings"]["text"], d["settings"]["tokens"])).items():
        table = losses(found, text, tokens)
        rows = {row[0]: row for row in table.rows}
        chart = Chart(
            f"language-{text}-{tokens}", f"{text}, {tokens} tokens", "validation loss, nats per character", "",
            (dots(table),),
            categories=tuple(r[0] for r in table.rows), reference=rows["softmax"][2] if "softmax" in rows else None,
        )  # fmt: skip
        finding, claim = _judged(rows, text, tokens)
        blocks.append(
            Block(f"{text}, {tokens} tokens, {found[0]['settings']['steps']} steps", (chart,), (finding,), (table,))
        )
        claims += [] if claim is None else [claim]
        headline = headline or f"language: {finding.text}"
    s = documents[0]["settings"]
    intro = (
        f"FastmaxLM with {s['layers']} layers of width {s['width']}, {s['heads']} heads, rotary "
        "positions, equal steps, the same batches for all of a "
        "seed. Each attention has the learning rate that is best for it on the validation text "
        "with seed 0; the dotted line is softmax. gated is a forget "
        "gate per token and head, decay one learned constant per head, standardized softmax takes "
        "standardized queries and keys."
    )
    return Section(NAME, TITLE, intro, tuple(blocks), tuple(claims[:1]) or (untested(*SAME),), headline)


def losses(found: list[Document], text: str, tokens: int) -> Table:
    def loss(document: Document) -> float:
        return float(document["result"]["val_loss"])

    return compared(
        found,
        f"language-{text}-{tokens}",
        f"Validation loss, {text}, {tokens} tokens",
        "nats per character",
        loss,
        chosen_by=loss,
        decimals=3,
    )


def _judged(rows: dict[str, tuple[object, ...]], text: str, tokens: int) -> tuple[Finding, Claim | None]:
    gaps = {name: row[4] for name, row in rows.items() if name != "softmax" and row[4] is not None}
    ours = {name: gap for name, gap in gaps.items() if name.startswith("fastmax")}
    if not ours:
        return Finding(""), None
    best = min(ours, key=lambda name: float(str(ours[name])))
    plain = {name: float(str(gap)) for name, gap in ours.items() if name in PLAIN}
    words = f"on {text}, {tokens} tokens, {best} is {float(str(ours[best])):+.3f} nats from softmax"
    if plain:
        name = min(plain, key=plain.__getitem__)
        words += f"; without decay the best is {name}, {plain[name]:+.3f}"
        behind = plain[name] > 0.02
        verdict = (DIFFERS if behind else AGREES) if text == "shakespeare" else OPEN
        claim = Claim(*SAME, verdict, f"{words}. Lower is better; negative is ahead of softmax.")
        return Finding(words, verdict), claim
    return Finding(words), None
