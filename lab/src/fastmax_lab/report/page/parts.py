"""What a report is made of: tables, charts, findings, claims, and sections that have them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

AGREES, DIFFERS, PARTLY, OPEN = "holds", "does not hold", "holds in part", "not tested here"


@dataclass(frozen=True)
class Table:
    """Cells are numbers, texts or None. `formats` are format specifications of columns of numbers, such as ".2f". Whether it
    is `folded` away goes by its length, where nothing is said."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    formats: tuple[str, ...] = ()
    folded: bool | None = None

    def shown(self, row: Sequence[Any], column: int) -> str:
        value = row[column]
        if value is None:
            return "–"
        spec = self.formats[column] if column < len(self.formats) else ""
        return format(value, spec) if isinstance(value, int | float) and spec else str(value)


@dataclass(frozen=True)
class Series:
    """Points of one contestant. `deviation` is drawn as a band or bars, `area` as circles; `missing` are places
    on the x axis that are marked with an x."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    deviation: tuple[float | None, ...] = ()
    area: tuple[float, ...] = ()
    missing: tuple[float, ...] = ()
    line: bool = True
    dashed: bool = False


@dataclass(frozen=True)
class Chart:
    """`categories` name the places 0, 1, .. on the y axis, of a chart of dots in rows."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    x_log: bool = False
    y_log: bool = False
    x_base: int = 10
    categories: tuple[str, ...] = ()
    reference: float | None = None

    def data(self) -> Table:
        """Every number that is drawn."""
        rows: list[tuple[Any, ...]] = []
        for one in self.series:
            for i, (x, y) in enumerate(zip(one.x, one.y, strict=True)):
                deviation = one.deviation[i] if one.deviation else None
                named = (self.categories[int(y)],) if self.categories else ()
                rows.append((one.label, *named, x, y, deviation, one.area[i] if one.area else None))
            rows += [(one.label, *([None] if self.categories else []), x, None, None, None) for x in one.missing]
        names, y_label = (("name",), self.y_label or "place") if self.categories else ((), self.y_label)
        columns = ("series", *names, self.x_label, y_label, "standard deviation", "area")
        return Table(self.name, self.title, columns, tuple(rows))


@dataclass(frozen=True)
class Finding:
    """A sentence under figures: what they show and, if the paper speaks of it, what it says and whether they agree."""

    text: str
    verdict: str = ""
    says: str = ""


@dataclass(frozen=True)
class Claim:
    """What the paper says, where, what was found here, and the numbers that say so."""

    source: str
    says: str
    verdict: str
    evidence: str

    @property
    def finding(self) -> Finding:
        """The same, to stand under the figures that it rests on."""
        return Finding(self.evidence, self.verdict, self.says)


@dataclass(frozen=True)
class PageBlock:
    """Charts that belong together, a sentence on them, tables; folded away where they are many."""

    title: str = ""
    charts: tuple[Chart, ...] = ()
    findings: tuple[Finding, ...] = ()
    tables: tuple[Table, ...] = ()
    folded: bool = False


@dataclass(frozen=True)
class Section:
    """`headline` is a line for the terminal; `data` what scripts of the page need."""

    name: str
    title: str
    intro: str = ""
    blocks: tuple[PageBlock, ...] = ()
    claims: tuple[Claim, ...] = ()
    headline: str = ""
    data: dict[str, Any] = field(default_factory=dict)


def untested(source: str, says: str, why: str = "nothing of it was measured in this folder") -> Claim:
    return Claim(source, says, OPEN, why)
