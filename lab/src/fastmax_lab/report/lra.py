"""Tables of the Long Range Arena: accuracies of a sweep, and speeds and memory of `fastmax-lab bench lra`."""

from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

from fastmax_lab.lra import paper
from fastmax_lab.lra.tasks import names
from fastmax_lab.measurements import Measurement
from fastmax_lab.report.table import table, times


def accuracies(found: Sequence[dict[str, Any]]) -> str:
    """Test accuracy in per cent, mean and spread over seeds, with the paper's in brackets."""
    cells: dict[tuple[str, str], list[float]] = {}
    for result in found:
        config = result["config"]
        cells.setdefault((config["attention"], config["task"]), []).append(100 * result["test"]["accuracy"])
    tasks = [task for task in names() if any(task == t for _, t in cells)]
    rows = []
    for attention in dict.fromkeys(attention for attention, _ in cells):
        row = [_accuracy(cells.get((attention, task)), paper.accuracy(attention, task)) for task in tasks]
        rows.append([attention, *row])
    return f"Test accuracy in per cent (the paper's in brackets)\n\n{table(['', *tasks], rows)}\n\n{paper.WARNING}"


def _accuracy(values: list[float] | None, theirs: float | None) -> str:
    ours = "-" if values is None else f"{mean(values):.2f}"
    if values is not None and len(values) > 1:
        ours += f" ± {stdev(values):.2f}"
    return ours if theirs is None else f"{ours} ({theirs:.2f})"


def summary(measured: Sequence[Measurement]) -> str:
    """Return a table per task: speed, both ratios, the paper's, memory."""
    parts = [
        "Training steps, skyformer preset, fp32, full length, random tokens; contestants in turns, best of several rounds. "
        "Ratios of steps per second to softmax by the plain formula (vanilla) and by PyTorch's kernel (softmax)."
    ]
    for cell in (d.settings | d.values for d in measured):
        best = {name: t["best"] for name, t in cell["seconds"].items()}
        attentions = [name for name in best if name != "data"]
        rows = []
        for name in attentions:
            t = best[name]
            ratio = paper.speed_ratio(name, cell["task"])
            memory = cell["bytes"].get(name)
            rows.append(
                [
                    name,
                    f"{1 / t:.2f}",
                    times(best["vanilla"] / t),
                    times(ratio),
                    times(best["softmax"] / t),
                    f"{(memory['peak'] - memory['before']) / 2**20:,.0f} MiB" if memory else "-",
                ]
            )
        pair = " x 2" if cell["pair"] else ""
        parts.append(
            f"### {cell['task']}, N = {cell['tokens']:,}{pair}, batch {cell['batch']}, "
            f"attention dropout {cell['attention_dropout']}"
        )
        parts.append(table(["attention", "steps/s", "vs vanilla", "the paper's", "vs softmax", "peak memory"], rows))
        fastest = min(best[name] for name in attentions)
        tokens = cell["tokens"] * (2 if cell["pair"] else 1) * cell["batch"]
        parts.append(
            f"Batches are loaded at {tokens / best['data'] / 1e6:,.0f} million tokens per second, "
            f"{fastest / best['data']:,.0f} times what the fastest takes in."
        )
    return "\n\n".join(parts)
