"""The parts of a report: tables, charts, findings, claims, and sections that have them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

AGREES, DIFFERS, PARTLY, OPEN = "holds", "does not hold", "holds in part", "remains open"


@dataclass(frozen=True)
class Table:
    """A table whose cells are numbers, texts or None. `formats` has the format specification of each column of numbers.

    If `folded` is None, a long table is folded away.
    """

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
    """The points of one contestant. `deviation` is drawn as a band or bars, `area` as circles.

    `missing` has the places on the x axis that are marked with an x, `raw` the faint points that a line was smoothed from.
    A `guide` is no contestant: a thin line with its name at its end.
    """

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    deviation: tuple[float | None, ...] = ()
    area: tuple[float, ...] = ()
    missing: tuple[float, ...] = ()
    raw: tuple[tuple[float, float], ...] = ()
    line: bool = True
    dashed: bool = False
    guide: bool = False


@dataclass(frozen=True)
class Chart:
    """A chart of several series. `categories` name the rows of a chart of dots: row i is from i up to i + 1 on the y axis.

    A `small` chart is one of many in a row.
    """

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
    small: bool = False

    def data(self) -> Table:
        """Return every number that is drawn."""
        rows: list[tuple[Any, ...]] = []
        for one in self.series:
            if one.guide:
                continue
            for i, (x, y) in enumerate(zip(one.x, one.y, strict=True)):
                deviation = one.deviation[i] if one.deviation else None
                named = (self.categories[round(y)],) if self.categories else ()
                rows.append((one.label, *named, x, y, deviation, one.area[i] if one.area else None))
            rows += [(f"{one.label}, unsmoothed", x, y, None, None) for x, y in one.raw]
            rows += [(one.label, *([None] if self.categories else []), x, None, None, None) for x in one.missing]
        names, y_label = (("name",), self.y_label or "place") if self.categories else ((), self.y_label)
        columns = ("series", *names, self.x_label, y_label, "standard deviation", "area")
        return Table(self.name, self.title, columns, tuple(rows))


@dataclass(frozen=True)
class Finding:
    """A paragraph under figures or above tables."""

    text: str


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, the verdict on it, and the number that decides.

    `rests_on` names the table or figure with all numbers, `seeds` how many trainings a number is the mean of. The
    `notes` stand beside that table: what limits the verdict, and how it was judged.
    """

    source: str
    says: str
    verdict: str
    number: str
    notes: tuple[str, ...] = ()
    rests_on: str = ""
    seeds: int | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(Finding(note) for note in self.notes)


@dataclass(frozen=True)
class LeadFigure:
    """A figure for the head of the page, with one sentence. The chart has a name of its own; its panel has it, too."""

    chart: Chart
    sentence: str


@dataclass(frozen=True)
class PageBlock:
    """Charts that belong together, paragraphs on them, and tables. `folded` hides all of it until it is opened.

    A wide page has `columns` charts beside one another, if that is set.
    """

    title: str = ""
    charts: tuple[Chart, ...] = ()
    findings: tuple[Finding, ...] = ()
    tables: tuple[Table, ...] = ()
    folded: bool = False
    columns: int | None = None


@dataclass(frozen=True)
class Section:
    """A section of the page. `headline` is a line for the terminal; `data` is for the scripts of the page."""

    name: str
    title: str
    intro: str = ""
    blocks: tuple[PageBlock, ...] = ()
    claims: tuple[Claim, ...] = ()
    headline: str = ""
    leads: tuple[LeadFigure, ...] = ()
    data: dict[str, Any] = field(default_factory=dict)


def untested(source: str, says: str, why: str = "nothing of it was measured in this folder") -> Claim:
    """Return a claim without a verdict, and why there is none."""
    return Claim(source, says, OPEN, why)
