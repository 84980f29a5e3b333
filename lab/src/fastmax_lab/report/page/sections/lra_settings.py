"""Scale, order and decay of encoders, on short sequences of the Long Range Arena."""

from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page.parts import Chart, Finding, PageBlock, Section, Table
from fastmax_lab.report.page.results import Results, group, spread
from fastmax_lab.report.page.sections.lra_runs import PAPER, dev_accuracy, error_of_examples, test_accuracy
from fastmax_lab.report.page.tuned import Tuned, compared, dots, edges, tuned

NAME = "lra-settings"
TITLE = "Scale, order and decay: Long Range Arena (ours)"


def section(results: Results) -> Section:
    measurements = results.get(NAME, [])
    if not measurements:
        return Section(NAME, TITLE)
    blocks, said = [], []
    for task, found in group(measurements, lambda d: d.settings["task"]).items():
        s = found[0].settings
        runs = tuned(found, test_accuracy, dev_accuracy, higher=True)
        if not runs:
            continue
        table = accuracies(runs, task)
        rows = {row[0]: row for row in table.rows}
        chart = Chart(
            f"lra-settings-{task}", f"{task}, {s['length']} tokens", "test accuracy, %", "", dots(table),
            categories=tuple(r[0] for r in table.rows), reference=rows["softmax"][2] if "softmax" in rows else None,
        )  # fmt: skip
        words = found_in(runs, task, found)
        said += [words] if words else []
        notes = (Finding(words), Finding(edges(runs)))
        title = f"{task}, {s['length']} tokens, {s['steps']:,} steps of {s['batch']} examples"
        blocks.append(PageBlock(title, (chart,), notes, (table,)))
    intro = (
        "The encoder of the preset on sequences that are shorter than the benchmark's, so that every setting has three "
        "learning rates, chosen by dev accuracy with seed 0, and three seeds. The dotted line is softmax. A decay is "
        "one learned constant per head, a gate one decay per token and head; both fade keys in both directions. "
        "A gap is within the noise if it is below two standard errors: that over seeds, of differences from softmax with "
        "the same seed, or that of an accuracy on the test examples, whichever is larger."
    )
    return Section(NAME, TITLE, intro, tuple(blocks), (), f"settings: {said[0]}" if said else "")


def accuracies(runs: dict[str, Tuned], task: str) -> Table:
    return compared(
        runs,
        f"lra-settings-{task}",
        f"Test accuracy, {task}; the best by dev accuracy first",
        "test accuracy, %",
        decimals=1,
        chosen_unit="dev accuracy, %",
    )


def found_in(runs: dict[str, Tuned], task: str, measurements: list[Measurement]) -> str:
    """Describe the gaps to softmax of the best Fastmax by the dev split, of gated softmax and of the paper's Fastmax2."""
    ours = [name for name, one in runs.items() if name.startswith("fastmax") and one.gap is not None]
    if not ours:
        return ""
    error = error_of_examples(spread(list(runs["softmax"].values.values()))[0], measurements)

    def far(name: str) -> str:
        found = runs[name].gap
        assert found is not None
        noise = " (one seed)" if found.error is None else "" if found.side(error) else " (within the noise)"
        return f"{found.mean:+.1f} points{noise}"

    of = f", of {len(ours)} Fastmax variants," if len(ours) > 1 else ""
    words = f"on {task}{of} the best by dev is {ours[0]}: from softmax {far(ours[0])}"
    others = {"softmax, gated": "softmax, gated", PAPER: "Fastmax2 as in the paper"}
    for name, called in others.items():
        if name in runs and name != ours[0] and runs[name].gap is not None:
            words += f". {called[0].upper() + called[1:]}: {far(name)}"
    return words
