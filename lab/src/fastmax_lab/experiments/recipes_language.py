"""The recipes of recall on language (ours): bytes of Tiny Shakespeare and WikiText-2 at 512 and 2,048 tokens."""

from collections.abc import Sequence
from dataclasses import asdict, replace

from fastmax_lab.experiments import recipes, texts
from fastmax_lab.experiments.items import Item
from fastmax_lab.experiments.language import name_of, tried_rates, tuning
from fastmax_lab.experiments.language_model import LanguageRun, language
from fastmax_lab.measurements import Measurement

NAME = "recipes-language"
SIZES = (LanguageRun("", 512, batch=4), LanguageRun("", 2048, batch=1))
TEXTS = ("shakespeare", "wikitext2")
WIDE = LanguageRun("", 512, batch=4, width=256)
"""The size of models with heads of 64 and 128."""
QUICK = LanguageRun("", 64, 4e-3, 0, 40, 4, 1, 32, 2, text="listops", validation=2048)
QUICK_RECIPES = ("softmax", "fastmax2, gated")


def runs(budget: str, found: Sequence[Measurement]) -> list[LanguageRun]:
    """Return every rate with the first seed, then more seeds at the best: recipes, then channels of queries and keys."""
    if budget == "quick":
        return [replace(QUICK, attention=name) for name in QUICK_RECIPES]
    result = []
    for base in SIZES:
        for text in TEXTS:
            tried = tried_rates([one for one in found if one.settings["text"] == text], base)
            for name in recipes.RECIPES:
                result += tuning(replace(base, text=text, attention=name), tried.get(name, {}))
    tried = tried_rates([one for one in found if one.settings["width"] == WIDE.width], WIDE)
    for name, (_, value_dim, _) in recipes.NARROW.items():
        base = replace(WIDE, attention=name, heads=WIDE.width // value_dim)
        result += tuning(base, tried.get(name, {}))
    return result


def items(budget: str, found: Sequence[Measurement]) -> list[Item]:
    return [item(run) for run in runs(budget, found)]


def item(run: LanguageRun) -> Item:
    cost = 4e-6 * run.steps * run.batch * run.tokens * run.layers * max(run.width / 64, 1)
    return Item(
        NAME,
        name_of(run),
        asdict(run),
        lambda workspace: language(run, texts.load(run.text, workspace.data), workspace.watch(run.steps), recipes.make),
        cost,
        threads=1,
    )
