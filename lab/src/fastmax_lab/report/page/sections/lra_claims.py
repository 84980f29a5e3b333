"""The claims on accuracy and loss in the Long Range Arena (Table 1, Figure 6): by runs at tuned rates where there are any."""

from dataclasses import replace
from statistics import mean, stdev

from fastmax_lab.lra.tasks import names as task_names
from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page.parts import AGREES, DIFFERS, OPEN, PARTLY, Claim, Table, untested
from fastmax_lab.report.page.results import group, spread
from fastmax_lab.report.page.sections import lra_clock, lra_time
from fastmax_lab.report.page.sections.lra_runs import (
    ENOUGH,
    PAPER,
    accuracy,
    at_chance,
    best_fastmax,
    by_attention,
    dev_accuracy,
    error,
    error_of_examples,
    test_accuracy,
)
from fastmax_lab.report.page.tuned import Tuned, Value, tuned
from fastmax_lab.report.page.words import listed

EQUAL = (
    "Table 1",
    "Fastmax reaches the accuracy of softmax on the Long Range Arena (57.90 and 57.62 against 57.37 on average).",
)
STEPS = ("Figure 6", "Measured by steps, softmax converges at the same speed as Fastmax1 or faster.")
RATES = 3
"""Learning rates that both attentions must have been tried at."""
LAST = 10
"""Points of the training loss at the end, each of a single batch, that are averaged."""


def equal(measurements: list[Measurement], at_rates: list[Measurement]) -> Claim:
    """Judge the paper's Fastmax by its gaps to softmax: at tuned rates, over seeds, where there are such runs."""
    full = gaps(measurements)
    sides, gaps_of, seeds = [], {}, []
    tasks: dict[str, str] = {}
    for attention in (PAPER, "fastmax1"):
        for task, (ours, softmax, runs) in _tuned(at_rates, test_accuracy, attention).items():
            assert ours.gap is not None
            assert ours.gap.error is not None
            of_examples = error_of_examples(spread(list(softmax.values.values()))[0], runs)
            sides.append({-1: "behind", 0: "level", 1: "ahead"}[ours.gap.side(of_examples)])
            tasks[task] = _named(task, runs)
            gaps_of[f"{attention} on {tasks[task]}"] = ours.gap.mean, max(ours.gap.error, of_examples)
            seeds.append(len(ours.values))
    if not sides:
        return _equal_at_full_length(full)
    where = min(gaps_of, key=lambda name: gaps_of[name][0] / gaps_of[name][1])
    gap, of = gaps_of[where]
    number = f"largest gap at tuned rates: {where}, {gap:+.1f} points, standard error {of:.1f}"
    notes = (f"At tuned rates there are runs on {listed(list(tasks.values()))}.", *_of_full_length(full))
    return Claim(*EQUAL, _reached(sides, len(tasks)), number, notes, f"lra-settings-{next(iter(tasks))}", min(seeds))


def _of_full_length(table: Table) -> tuple[str, ...]:
    decided = [row for row in table.rows if row[4] != "open"]
    if not decided:
        return ()
    task, _, gap, of, *_ = min(decided, key=lambda row: row[2] / row[3])
    return (
        f"At full length, with one rate for all and one seed, the largest is {task}, {gap:+.1f} points ± {of:.1f}.",
    )


def _equal_at_full_length(table: Table) -> Claim:
    if not table.rows:
        return untested(*EQUAL, "no task has both softmax and a Fastmax2 in this folder")
    decided = [row for row in table.rows if row[4] != "open"]
    task, _, gap, of, *_ = min(decided or table.rows, key=lambda row: row[2] / row[3])
    number = f"largest gap: {task}, {gap:+.1f} points, standard error {of:.1f}"
    undecided = [row[0] for row in table.rows if row[4] == "open"]
    notes = [f"Open, because all are at chance level or the runs are short: {listed(undecided)}."] if undecided else []
    verdict = _reached([row[4] for row in decided], len(decided))
    return Claim(*EQUAL, verdict, number, tuple(notes), table.name, min(row[-1] for row in decided or table.rows))


def _reached(sides: list[str], tasks: int) -> str:
    """Judge by the decided tasks: it holds if all tasks are decided and none is behind, and does not if all are behind."""
    if not sides:
        return OPEN
    behind = [side == "behind" for side in sides]
    if all(behind):
        return DIFFERS
    return AGREES if not any(behind) and tasks == len(task_names()) else PARTLY


def gaps(measurements: list[Measurement]) -> Table:
    """Return the gap of the paper's Fastmax2 to softmax in each task: at its scale where that was trained.

    A task is open if its runs are short, or if neither they nor the best Fastmax have left chance level.
    """
    rows = []
    for task, found in group(measurements, lambda d: d.settings["task"]).items():
        runs = by_attention(found)
        ours = runs.get(PAPER, runs.get("fastmax2", []))
        if "softmax" not in runs or not ours:
            continue
        softmax, best = runs["softmax"], best_fastmax(found)
        gap, of = accuracy(ours) - accuracy(softmax), (error(ours) ** 2 + error(softmax) ** 2) ** 0.5
        is_open = found[0].settings["steps"] < ENOUGH or all(at_chance(d) for d in (*softmax, *ours, *best))
        side = "open" if is_open else "behind" if gap < -2 * of else "ahead" if gap > 2 * of else "level"
        rows.append((task, ours[0].settings["attention"], gap, of, side, len(ours)))
    return Table(
        "lra-gap",
        "Fastmax2 less softmax, test accuracy at equal steps",
        ("task", "Fastmax2", "points", "standard error", "by two standard errors", "seeds"),
        tuple(rows),
        ("", "", "+.1f", ".1f"),
    )


def by_steps(measurements: list[Measurement], at_rates: list[Measurement]) -> Claim:
    """Judge by the loss at the end, beyond two standard errors: at tuned rates, over seeds, where there are such runs."""
    found = _tuned(at_rates, _last, "fastmax1")
    if not found:
        return _by_steps_at_full_length(measurements)
    ahead, sizes = {}, {}
    for task, (ours, _, runs) in found.items():
        assert ours.gap is not None
        assert ours.gap.error is not None
        where = _named(task, runs)
        ahead[where] = ours.gap.side() < 0
        sizes[where] = ours.gap.mean / max(ours.gap.error, 1e-9), ours.gap
    least = min(sizes, key=lambda name: sizes[name][0])
    far = sizes[least][1]
    number = f"training loss on {least}, at tuned rates: {far.mean:+.3f} nats{far.noise(3)}"
    verdict = DIFFERS if all(ahead.values()) else PARTLY if any(ahead.values()) else AGREES
    seeds = min(len(ours.values) for ours, _, _ in found.values())
    notes = (f"{least[0].upper()}{least[1:]} is the task on which softmax is least ahead.",)
    return Claim(*STEPS, verdict, number, notes, "lra-settings-" + next(iter(found)), seeds)


def _by_steps_at_full_length(measurements: list[Measurement]) -> Claim:
    """Judge by the loss at the end, beyond two standard errors of its last points, where something was learned."""
    table = ends(measurements)
    loss = {(task, name): (mean, error) for task, name, mean, error, decides in table.rows if decides == "yes"}
    margins = {}
    for task in dict.fromkeys(task for task, _ in loss):
        (softmax, a), (fastmax, b) = loss[task, "softmax"], loss[task, "fastmax1"]
        margins[task] = fastmax - softmax, (a**2 + b**2) ** 0.5
    if not margins:
        return untested(*STEPS, "no task has long runs of both softmax and fastmax1 above chance level in this folder")
    not_behind = [margin >= -2 * of for margin, of in margins.values()]
    least = min(margins, key=lambda task: margins[task][0] / max(margins[task][1], 1e-9))
    number = f"training loss on {least}: {loss[least, 'fastmax1'][0]:.3f} against {loss[least, 'softmax'][0]:.3f}"
    verdict = AGREES if all(not_behind) else PARTLY if any(not_behind) else DIFFERS
    notes = (f"{least} is the task on which softmax is least ahead.",)
    return Claim(*STEPS, verdict, number, notes, table.name, 1)


def by_clock(time: Table | None, at_rates: list[Measurement], pace: list[Measurement]) -> Claim:
    """Judge by the test accuracy after equal time: at tuned rates, over seeds, where there are such runs."""
    at_one_rate = lra_time.claim(time)
    tuned_runs = _tuned(at_rates, test_accuracy, "fastmax1")
    shares = {task: lra_clock.share_of_time(runs, pace) for task, (_, _, runs) in tuned_runs.items()}
    found = {task: of for task, of in tuned_runs.items() if shares[task] is not None}
    sides, numbers = [], {}
    for task, (ours, softmax, runs) in found.items():
        assert ours.gap is not None
        of_examples = error_of_examples(spread(list(softmax.values.values()))[0], runs)
        sides.append(ours.gap.side(of_examples))
        noise = replace(ours.gap, error=max(ours.gap.error or 0.0, of_examples)).noise(1)
        numbers[ours.gap.mean] = (
            f"test accuracy on {task} in {shares[task]:.2f} of softmax's time: {ours.gap.mean:+.1f} points{noise}"
        )
    if not sides:
        return at_one_rate
    verdict = AGREES if set(sides) == {1} else PARTLY if 1 in sides else DIFFERS if -1 in sides else OPEN
    if verdict == AGREES and at_one_rate.verdict in (PARTLY, DIFFERS):  # on tasks that were not tuned
        verdict = PARTLY
    seeds = min(len(ours.values) for ours, _, _ in found.values())
    notes = (f"At tuned rates there are runs on {listed(list(found))}.", *_of_one_rate(at_one_rate))
    return Claim(*lra_time.CLOCK, verdict, numbers[min(numbers)], notes, f"{lra_clock.NAME}-{next(iter(found))}", seeds)


def _of_one_rate(claim: Claim) -> tuple[str, ...]:
    """Return what the runs with one rate for all and one seed show, if they show anything."""
    return () if not claim.rests_on else (f"With one rate for all and one seed it {claim.verdict}: {claim.number}.",)


def ends(measurements: list[Measurement]) -> Table:
    """Return the training losses at the end, with their standard error over the batches that they are the mean of."""
    rows = []
    for task, found in group((d for d in measurements if not d.settings["seed"]), lambda d: d.settings["task"]).items():
        runs = {d.settings["attention"]: d for d in found if d.settings["attention"] in lra_time.ATTENTIONS}
        both = [runs[name] for name in ("softmax", "fastmax1") if name in runs]
        decides = len(both) == 2 and both[0].settings["steps"] >= ENOUGH and not all(map(at_chance, both))
        rows += [(task, name, *_end(d), "yes" if decides else "no") for name, d in runs.items()]
    return Table(
        "lra-loss-end",
        f"Training loss at the end, mean of the last {LAST} points",
        ("task", "attention", "training loss, nats", "standard error", "decides"),
        tuple(rows),
        ("", "", ".3f", ".3f"),
        folded=True,
    )


def _end(measurement: Measurement) -> tuple[float, float]:
    """Return the training loss at the end and its standard error over the batches that it is the mean of."""
    losses = [loss for _, loss, _ in measurement.values["curves"]["train"][-LAST:]]
    return mean(losses), stdev(losses) / len(losses) ** 0.5 if len(losses) > 1 else 0.0


def _last(measurement: Measurement) -> float:
    return _end(measurement)[0]


def _tuned(
    measurements: list[Measurement], value: Value, attention: str
) -> dict[str, tuple[Tuned, Tuned, list[Measurement]]]:
    """Return an attention and softmax by task, each at its best rate by dev accuracy, where both were tuned over seeds."""
    found = {}
    for task, runs in group(measurements, lambda d: str(d.settings["task"])).items():
        names = tuned(runs, value, dev_accuracy, higher=True)
        both = [names[name] for name in (attention, "softmax") if name in names]
        if len(both) == 2 and all(len(one.rates) >= RATES and len(one.values) > 1 for one in both):
            found[task] = both[0], both[1], runs
    return found


def _named(task: str, runs: list[Measurement]) -> str:
    return f"{task} of {runs[0].settings['length']} tokens"
