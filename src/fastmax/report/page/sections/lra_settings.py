"""Scale, order, decay: what encoders learn with each, on short sequences of the Long Range Arena."""

from fastmax.report.page.documents import Document, Results, group
from fastmax.report.page.parts import Block, Chart, Finding, Section, Table
from fastmax.report.page.tuned import compared, dots

NAME = "lra-settings"
TITLE = "Scale, order and decay: Long Range Arena (ours)"


def section(results: Results) -> Section:
    documents = results.get(NAME, [])
    if not documents:
        return Section(NAME, TITLE)
    blocks, said = [], []
    for task, found in group(documents, lambda d: d["settings"]["task"]).items():
        s = found[0]["settings"]
        table = accuracies(found, task)
        rows = {row[0]: row for row in table.rows}
        chart = Chart(
            f"lra-settings-{task}", f"{task}, {s['length']} tokens", "test accuracy, %", "", (dots(table),),
            categories=tuple(r[0] for r in table.rows), reference=rows["softmax"][2] if "softmax" in rows else None,
        )  # fmt: skip
        finding = _found(table, task)
        said += [finding.text] if finding.text else []
        title = f"{task}, {s['length']} tokens, {s['steps']:,} steps of {s['batch']} examples"
        blocks.append(Block(title, (chart,), (finding,), (table,)))
    intro = (
        "The encoder of the preset on sequences that are shorter than the benchmark's, so that every setting has three "
        "learning rates, chosen by dev accuracy with seed 0, and three seeds. The dotted line is softmax. Weights fade in "
        "both directions where there is a decay, one learned constant per head, or a gate, one of every token and head."
    )
    return Section(NAME, TITLE, intro, tuple(blocks), (), f"settings: {'; '.join(said)}" if said else "")


def accuracies(found: list[Document], task: str) -> Table:
    return compared(
        found,
        f"lra-settings-{task}",
        f"Test accuracy, {task}; the best by dev accuracy first",
        "test accuracy, %",
        lambda d: float(100 * d["result"]["test"]["accuracy"]),
        chosen_by=lambda d: -float(d["result"]["dev_accuracy"]),
        decimals=1,
    )


def _found(table: Table, task: str) -> Finding:
    """The paper's Fastmax2, and the best by the dev split, against softmax."""
    rows = {row[0]: row for row in table.rows if row[4] is not None}
    ours = [name for name in rows if name.startswith("fastmax")]
    if not ours:
        return Finding("")
    best = ours[0]
    words = f"on {task} the best by dev is {best}, {rows[best][4]:+.1f} points from softmax"
    paper = "fastmax2, paper's scale"
    if paper in rows and paper != best:
        words += f"; Fastmax2 as in the paper {rows[paper][4]:+.1f}"
    return Finding(words)
