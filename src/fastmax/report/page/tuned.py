"""Runs of several learning rates and seeds: the best rate of each attention by its first seed, all seeds of that rate."""

from collections.abc import Callable
from typing import Any

from fastmax.report.page.documents import Document, group, spread
from fastmax.report.page.parts import Series, Table

Value = Callable[[Document], float]


def compared(
    found: list[Document], name: str, title: str, unit: str, value: Value, *, chosen_by: Value, decimals: int
) -> Table:
    """A row for each attention, the best first by `chosen_by`, of which lower is better."""
    by_name = group(found, lambda d: d["settings"]["attention"])
    chosen: dict[str, dict[int, float]] = {}
    rates, places = {}, {}
    for attention, runs in by_name.items():
        first = {d["settings"]["lr"]: chosen_by(d) for d in runs if d["settings"]["seed"] == 0}
        if not first:  # its rate is not chosen yet
            continue
        rates[attention] = min(first, key=first.__getitem__)
        own = [d for d in runs if d["settings"]["lr"] == rates[attention]]
        chosen[attention] = {d["settings"]["seed"]: value(d) for d in own}
        places[attention] = spread([chosen_by(d) for d in own])[0]
    softmax = chosen.get("softmax", {})
    rows: list[tuple[Any, ...]] = []
    for attention, seeds in chosen.items():
        gaps = [one - softmax[seed] for seed, one in seeds.items() if seed in softmax]
        gap = spread(gaps) if gaps else (None, None)
        tried = len({d["settings"]["lr"] for d in by_name[attention]})
        rows.append((attention, rates[attention], *spread(list(seeds.values())), *gap, len(seeds), tried))
    rows.sort(key=lambda row: places[row[0]])
    columns = ("attention", "learning rate", unit, "±", "gap to softmax", "± ", "seeds", "rates tried")
    shape = f".{decimals}f"
    return Table(name, title, columns, tuple(rows), ("", "g", shape, shape, f"+{shape}", shape))


def dots(table: Table) -> Series:
    """The rows of `compared`, from the first on, with their spread."""
    places = tuple(range(len(table.rows)))
    return Series("best learning rate", tuple(r[2] for r in table.rows), places, tuple(r[3] for r in table.rows))
