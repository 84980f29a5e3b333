"""Language models of every attention, with learning rates tuned equally, over seeds."""

from collections.abc import Sequence
from dataclasses import asdict, replace

from fastmax_lab.experiments import texts
from fastmax_lab.experiments.items import Item
from fastmax_lab.experiments.language_model import LanguageRun, language
from fastmax_lab.experiments.training import ATTENTIONS
from fastmax_lab.experiments.tuning import rates_of
from fastmax_lab.measurements import Measurement, slug

NAME = "language"
RATES = (2e-3, 4e-3, 8e-3)
COMPARED = ("softmax", "fastmax2, gated", "softmax, gated")
"""At more than 128 tokens."""
COMPARED_LONG = ("softmax", "fastmax2, paper's scale", "fastmax2, gated", "softmax, gated")
"""In ten times as many steps."""
SEEDS = (0, 1, 2)
QUICK = LanguageRun("", 64, 4e-3, 0, 80, 8, 1, 48, 2, text="listops", validation=4096)
LONG = LanguageRun("", 1024, 2e-3, 0, 20_000, 16, 6, 384, 6)
"""For a GPU."""


def tried_rates(found: Sequence[Measurement], base: LanguageRun) -> dict[str, dict[float, float]]:
    """Return the validation loss of seed 0 by attention and learning rate, of runs with the length and steps of `base`."""
    losses: dict[str, dict[float, float]] = {}
    for one in found:
        run = one.settings
        if run["seed"] == 0 and (run["tokens"], run["steps"]) == (base.tokens, base.steps):
            losses.setdefault(run["attention"], {})[run["lr"]] = one.values["val_loss"]
    return losses


def runs(budget: str, found: Sequence[Measurement]) -> list[LanguageRun]:
    """Return every rate with the first seed, then more seeds with each attention's best rate. Quick: one rate, one seed."""
    if budget == "quick":
        return [replace(QUICK, attention=name) for name in ATTENTIONS]
    short = LanguageRun("")
    sizes = {
        "cpu": [
            (short, tuple(ATTENTIONS)),
            (replace(short, tokens=512, batch=4), COMPARED),
            (replace(short, steps=10 * short.steps), COMPARED_LONG),
        ],
        "full": [(LONG, tuple(ATTENTIONS))],
    }[budget]
    return [
        run
        for base, attentions in sizes
        for name in attentions
        for run in tuning(replace(base, attention=name), tried_rates(found, base).get(name, {}))
    ]


def tuning(base: LanguageRun, tried: dict[float, float]) -> list[LanguageRun]:
    """Return the runs of one attention, by the losses that are known by rate."""
    rates, best = rates_of({lr: -loss for lr, loss in tried.items()}, RATES)
    result = [replace(base, lr=lr) for lr in rates]
    return result if best is None else result + [replace(base, lr=best, seed=seed) for seed in SEEDS[1:]]


def items(budget: str, found: Sequence[Measurement]) -> list[Item]:
    return [item(run) for run in runs(budget, found)]


def name_of(run: LanguageRun) -> str:
    steps = "" if run.steps == LanguageRun("").steps else f"{run.steps}steps"
    return slug(run.text, run.tokens, steps, run.attention, f"lr{run.lr:g}", f"seed{run.seed}").replace("'s", "")


def item(run: LanguageRun) -> Item:
    cost = 3e-6 * run.steps * run.batch * run.tokens * run.layers * max(run.width / 64, 1)
    return Item(
        NAME,
        name_of(run),
        asdict(run),
        lambda workspace: language(run, texts.load(run.text, workspace.data), workspace.watch(run.steps)),
        cost,
        threads=1,
    )
