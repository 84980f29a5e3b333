"""Language models of every attention, with learning rates tuned equally, over seeds."""

from collections.abc import Sequence
from dataclasses import asdict, replace

from fastmax_lab.experiments import texts
from fastmax_lab.experiments.items import Item
from fastmax_lab.experiments.language_model import LanguageRun, language
from fastmax_lab.experiments.training import ATTENTIONS
from fastmax_lab.measurements import Measurement, slug

NAME = "language"
RATES = (2e-3, 4e-3, 8e-3)
COMPARED = ("softmax", "fastmax2, gated", "softmax, gated")
"""At more than 128 tokens."""
SEEDS = (0, 1, 2)
QUICK = LanguageRun("", 64, 4e-3, 0, 80, 8, 1, 48, 2, text="listops", validation=4096)
LONG = LanguageRun("", 1024, 2e-3, 0, 20_000, 16, 6, 384, 6)
"""For a GPU."""


def best_rates(found: Sequence[Measurement], tokens: int) -> dict[str, float]:
    """Return the learning rate of the lowest validation loss of seed 0, for each attention that has all of them."""
    losses: dict[str, dict[float, float]] = {}
    for one in found:
        run = one.settings
        if run["seed"] == 0 and run["tokens"] == tokens:
            losses.setdefault(run["attention"], {})[run["lr"]] = one.values["val_loss"]
    return {name: min(of, key=of.__getitem__) for name, of in losses.items() if set(of) >= set(RATES)}


def runs(budget: str, found: Sequence[Measurement]) -> list[LanguageRun]:
    """Return every rate with the first seed, then more seeds with each attention's best rate. Quick: one rate, one seed."""
    if budget == "quick":
        return [replace(QUICK, attention=name) for name in ATTENTIONS]
    sizes = {
        "cpu": [(LanguageRun(""), tuple(ATTENTIONS)), (LanguageRun("", tokens=512, batch=4), COMPARED)],
        "full": [(LONG, tuple(ATTENTIONS))],
    }[budget]
    result: list[LanguageRun] = []
    for base, attentions in sizes:
        rates = best_rates(found, base.tokens)
        for name in attentions:
            result += [replace(base, attention=name, lr=lr) for lr in RATES]
            if name in rates:
                result += [replace(base, attention=name, lr=rates[name], seed=seed) for seed in SEEDS[1:]]
    return result


def items(budget: str, found: Sequence[Measurement]) -> list[Item]:
    return [item(run) for run in runs(budget, found)]


def name_of(run: LanguageRun) -> str:
    return slug(run.text, run.tokens, run.attention, f"lr{run.lr:g}", f"seed{run.seed}").replace("'s", "")


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
