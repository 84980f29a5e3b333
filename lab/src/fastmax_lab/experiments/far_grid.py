"""Recall from afar (ours): rates tuned at 512 tokens, then seeds at 4,096, other numbers of pairs and 8,192 tokens."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import pairwise

from fastmax_lab.experiments.far import FarRun, far
from fastmax_lab.experiments.items import Item
from fastmax_lab.experiments.recipes import RECIPES
from fastmax_lab.measurements import Measurement, slug

NAME = "recall-far"
RATES = (3e-3, 1e-3, 1e-2)
SEEDS = (0, 1, 2)
PARTS = (0, 2, 6, len(RECIPES))
"""Ends of the parts of the recipes that are measured one after another."""
SHORT = FarRun("", length=512, steps=3000)
LONG = FarRun("", steps=6000)
OTHERS = (
    replace(LONG, pairs=4),
    replace(LONG, pairs=64),
    replace(LONG, distractors=48),
    replace(LONG, length=8192),
)
"""Also measured, with the first seed: few and many pairs, needles among pairs that are not asked for, twice the length."""
QUICK = FarRun("", pairs=4, length=64, lr=1e-2, steps=60, tokens=512, names=8, noise=8, width=16)
QUICK_RECIPES = ("softmax", "fastmax2, gated", "window")


def score(measurement: Measurement) -> float:
    """Rate a run by its accuracy; of runs that solved the task, by how early they did."""
    values, steps = measurement.values, measurement.settings["steps"]
    return float(2 - values["steps_done"] / steps if values["solved"] else values["accuracy"])


def rate_of_long(found: Sequence[Measurement], recipe: str) -> float | None:
    """Return the rate with which a recipe did best on short texts.

    None before all rates were tried, and if none of them led to texts of the whole length.
    """
    expected = asdict(replace(SHORT, recipe=recipe))
    tried = {one.settings["lr"]: one for one in found if {**one.settings, "lr": SHORT.lr} == expected}
    if not tried.keys() >= set(RATES) or all(one.values["length_reached"] < SHORT.length for one in tried.values()):
        return None
    return max(RATES, key=lambda lr: score(tried[lr]))


def runs(budget: str, found: Sequence[Measurement]) -> list[FarRun]:
    """Return every rate on short texts; at the best one all seeds on long texts; then the other tasks.

    Long texts are for recipes that got as far as whole short ones, the other tasks for those that solved long texts. The
    first recipes come first, for they tell whether the task can be learned.
    """
    if budget == "quick":
        return [replace(QUICK, recipe=name) for name in QUICK_RECIPES]
    names = list(RECIPES)
    rates = {name: lr for name in names if (lr := rate_of_long(found, name)) is not None}
    solved = {one.settings["recipe"] for one in found if one.settings["length"] == LONG.length and one.values["solved"]}
    result: list[FarRun] = []
    for begin, end in pairwise(PARTS):
        part = names[begin:end]
        result += [replace(SHORT, recipe=name, lr=lr) for lr in RATES for name in part]
        result += [replace(LONG, recipe=name, lr=rates[name]) for name in part if name in rates]
    result += [replace(LONG, recipe=name, lr=lr, seed=seed) for seed in SEEDS[1:] for name, lr in rates.items()]
    return result + [
        replace(task, recipe=name, lr=lr) for task in OTHERS for name, lr in rates.items() if name in solved
    ]


def items(budget: str, found: Sequence[Measurement]) -> list[Item]:
    return [item(run) for run in runs(budget, found)]


def name_of(run: FarRun) -> str:
    distractors = f"distractors{run.distractors}" if run.distractors else ""
    size = f"{run.length} pairs{run.pairs}"
    return slug(size, distractors, run.recipe, f"lr{run.lr:g}", f"seed{run.seed}").replace("'s", "")


def item(run: FarRun) -> Item:
    cost = 1e-5 * run.steps * run.tokens * run.layers * run.width / 64
    return Item(
        NAME,
        name_of(run),
        asdict(run),
        lambda workspace: far(run, workspace.folder, workspace.watch(run.steps)),
        cost,
        threads=1,
    )
