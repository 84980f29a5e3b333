"""Long Range Arena at equal time (Figure 6): steps of the trainings at the price that a quiet machine had for each."""

from fastmax.report.page.documents import Document, group
from fastmax.report.page.parts import AGREES, DIFFERS, OPEN, PARTLY, Claim, Table, untested

CLOCK = ("Figure 6", "Measured by wall clock, Fastmax1 converges much faster than softmax.")
ATTENTIONS = ("fastmax1", "fastmax2", "fastmax2, gated", "softmax")
KERNELS = {"softmax": {"softmax": "softmax", "softmax, plain formula": "vanilla"}}
"""Trained once, timed in two ways."""
NOISE = 1.5
"""Points of accuracy on a thousand or two dev examples that decide nothing."""


def costs(document: Document, pace: list[Document]) -> dict[str, float] | None:
    """Seconds of a step over those of fastmax2, as timed on the batches of these very runs."""
    s = document["settings"]
    same = ("task", "batch", "length", "group_lengths", "attention_dropout")
    timed = next((d for d in pace if all(d["settings"][name] == s.get(name) for name in same)), None)
    if timed is None:
        return None
    best = {name: t["best"] for name, t in timed["result"]["seconds"].items()}
    return {name: seconds / best["fastmax2"] for name, seconds in best.items()}


def table(equal: list[Document], longer: list[Document], pace: list[Document]) -> Table | None:
    """The best dev accuracy that each has seen when the run of fastmax2 ends, and when that of softmax does."""
    rows = []
    for task, runs in group((d for d in equal if not d["settings"]["seed"]), lambda d: d["settings"]["task"]).items():
        price = costs(runs[0], pace)
        by_name = {d["settings"]["attention"]: d for d in runs}
        if price is None or not {"softmax", "fastmax2"} <= by_name.keys():
            continue
        more = {d["settings"]["attention"]: d for d in longer if d["settings"]["task"] == task}
        steps = by_name["softmax"]["settings"]["steps"]
        for name in ATTENTIONS:
            for shown, kernel in KERNELS.get(name, {name: name}).items():
                if name not in by_name or kernel not in price:
                    continue
                early = _seen(by_name[name], steps / price[kernel])
                late = _seen(more.get(name, by_name[name]), steps * price["softmax"] / price[kernel])
                rows.append((task, shown, price[kernel], *early, *late))
    if not rows:
        return None
    columns = (
        "task",
        "attention",
        "time of a step, fastmax2 = 1",
        "steps when fastmax2 ends",
        "best dev accuracy by then, %",
        "steps when softmax ends",
        "best dev accuracy by then, % ",
    )
    return Table(
        "lra-equal-time",
        "Accuracy at equal time: when the run of fastmax2 ends, and when that of softmax (PyTorch's kernel) ends",
        columns,
        tuple(rows),
        ("", "", ".2f", ",.0f", ".2f", ",.0f", ".2f"),
    )


def _seen(document: Document, steps: float) -> tuple[float, float | None]:
    steps = min(steps, document["settings"]["steps"])
    accuracies = [100 * accuracy for step, _, accuracy in document["result"]["curves"]["dev"] if step <= steps]
    return steps, max(accuracies, default=None)


def claim(found: Table | None) -> Claim:
    if found is None:
        return untested(*CLOCK, "no task has both trainings and timed steps of the same kind in this folder")
    parts, gaps = [], []
    for task in dict.fromkeys(row[0] for row in found.rows):
        rows = {row[1]: row for row in found.rows if row[0] == task}
        said = ", ".join(f"{name} {'none yet' if row[4] is None else f'{row[4]:.1f} %'}" for name, row in rows.items())
        parts.append(f"{task}: {said}")
        ours, theirs = rows.get("fastmax1", rows["fastmax2"])[4], rows["softmax, plain formula"][4]
        gaps.append(100.0 if theirs is None else -100.0 if ours is None else ours - theirs)
    ahead, behind = (any(sign * gap > NOISE for gap in gaps) for sign in (1, -1))
    verdict = PARTLY if ahead and behind else AGREES if ahead else DIFFERS if behind else OPEN
    return Claim(*CLOCK, verdict, f"Best dev accuracy in the time of fastmax2's run: {'; '.join(parts)}.")
