"""The places in lab/results of the measured numbers in README and docs.

python tools/find_numbers.py            # page, line, numbers, file of results and record or row in it

A number is measured if it has a unit, a spread, or three digits and a decimal point. A row of a table is found if one record
of the results, or one row of the tables that the lab makes of them, has all its numbers, rounded as they are printed. A
number in prose is found in a table of its page, or of a page that is linked beside it, or in the results.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fastmax_lab.measurements import read
from fastmax_lab.report import core, decay, decode, distributed, dropout, generate, kernel, long, narrow
from fastmax_lab.report.page import build
from fastmax_lab.report.page.results import load

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "lab" / "results"
BENCH = ("bench/",)
SOURCES: dict[str, tuple[str, ...]] = {
    "README.md": BENCH,
    "docs/choosing.md": ("language", "lra", "report", "bench/decay"),
    "docs/convert.md": ("convert/",),
    "docs/distributed.md": ("bench/distributed",),
    "docs/faq.md": BENCH,
    "docs/learning.md": ("language", "recall", "report"),
    "docs/long-sequences.md": ("bench/long",),
    "docs/lra.md": ("lra", "report"),
    "docs/performance-data.md": BENCH,
    "docs/performance.md": BENCH,
    "docs/reproduction.md": ("report", "language"),
    "docs/transformers.md": ("bench/generate", "convert/"),
}
"""The files that a page rests on, by the beginning of their names; "report" has the tables of the report."""
KNOWN: dict[str, dict[str, str]] = {
    "README.md": dict.fromkeys(("4.5 MB", "0.37 MB"), "counted, see tests/test_costs.py"),
    "docs/choosing.md": dict.fromkeys(("4.5 MB", "1.1 GB", "0.37 MB"), "counted, see tests/test_costs.py"),
    "docs/convert.md": {
        "19 GB": "a state of order 4, counted", "50 MB": "one of order 2", "84 MB": "a download", "93 MB": "a download",
    },
    "docs/distributed.md": {"10 µs": "an assumption of the estimate", "100 µs": "another"},
    "docs/lra.md": {"64 GB": "a limit of `data unpack`"},
    "docs/performance.md": {"9 µs": "taken from a profile"},
    "docs/performance-data.md": dict.fromkeys(
        ("2.9e-04", "2.0e-03", "3.9e-06", "1.6e-03", "1.2e-03", "3.5e-07", "1.4e-03"), "computed as its page says"
    ),
}  # fmt: skip
"""Numbers that are not measurements of this repository."""
ERROR = "its standard error"
SUMMARIES = {
    "core": core, "decay": decay, "decode": decode, "distributed": distributed, "dropout": dropout, "generate": generate,
    "kernel": kernel, "long": long, "narrow": narrow,
}  # fmt: skip
UNITS = {"ms": 1e-3, "s": 1.0, "µs": 1e-6, "us": 1e-6, "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20,
         "%": 0.01, "points": 0.01, "x": 1.0, "times": 1.0, "nats": 1.0, "±": 1.0, "": 1.0}  # fmt: skip
NUMBER = re.compile(
    r"(?<![\w.,/^-])(?P<sign>[-+])?(?P<digits>\d[\d,]*(?:\.\d+)?(?:e-?\d+)?)"
    r"(?: ?(?P<unit>ms|s|µs|us|[kMG]B|[KM]iB|B|%|points|x|times|nats|±))?(?![\w/]|[.,]\d)"
)


@dataclass(frozen=True)
class Number:
    """A number as it is printed: its value in units of seconds, bytes or one, and half of its last digit."""

    text: str
    value: float
    tolerance: float

    def fits(self, value: float) -> bool:
        return abs(abs(value) - self.value) <= self.tolerance * 1.02


def numbers(text: str, *, every: bool = False) -> Iterator[Number]:
    """Yield the measured numbers of a text, or every number."""
    plain = re.sub(
        r"`[^`]*`|\]\([^)]*\)|(?:Python|transformers|to) \d\.\d+(?! ?[%x])|\d{4}-\d\d-\d\d|\d+\.\d+\.\d+\S*", " ", text
    )
    for found in NUMBER.finditer(plain):
        unit, digits = found["unit"] or "", found["digits"].replace(",", "")
        after_spread = plain[: found.start()].endswith("± ")
        has_places = "." in digits and len(digits.replace(".", "").strip("0")) >= 3
        if not (every or unit or after_spread or has_places):
            continue
        mantissa, _, exponent = digits.partition("e")
        last = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
        yield Number(found[0].strip(), float(digits) * UNITS[unit], 0.5 * last * UNITS[unit])


def leaves(value: Any) -> Iterator[float]:
    """Yield the numbers of a measurement. Long lists, such as curves and maps, are left out."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return
    if isinstance(value, int | float):
        yield float(value)
    elif isinstance(value, dict):
        for one in value.values():
            yield from leaves(one)
    elif len(value) <= 64:
        for one in value:
            yield from leaves(one)


@cache
def groups() -> dict[str, list[tuple[str, list[float]]]]:
    """Return by file the numbers that belong together: of a record, of a task, of all rows of the same name."""
    found: dict[str, list[tuple[str, list[float]]]] = {}
    for path in sorted(RESULTS.rglob("*.jsonl")):
        name = path.relative_to(RESULTS).with_suffix("").as_posix()
        rows: dict[str, list[float]] = {}
        kind = name.removeprefix("bench/").partition("-")[0]
        if name.startswith("bench/") and kind in SUMMARIES:
            for line in SUMMARIES[kind].summary(read(path)).splitlines():
                label = line.split("|")[1].strip() if line.startswith("|") else line[:40]
                rows.setdefault(label, []).extend(number.value for number in numbers(line, every=True))
        else:
            for at, line in enumerate(path.read_text().splitlines(), 1):
                record = json.loads(line)
                own = list(leaves(record))
                rows[f"line {at}"] = own
                for shared in ("task", "attention"):
                    label = record.get("settings", {}).get(shared)
                    if label:
                        rows.setdefault(label, []).extend(own)
        found[name] = list(rows.items())
    families: dict[str, dict[str, list[float]]] = {}
    for table in build.tables(build.sections(load(RESULTS))):
        rows = families.setdefault(table.name.partition("-")[0], {})
        columns = {name: i for i, name in enumerate(table.columns)}
        for row in table.rows:
            cells = [float(cell) for cell in row if isinstance(cell, int | float)]
            if ERROR in columns and row[columns[ERROR]] is not None:  # the docs have the spread of the seeds
                cells.append(row[columns[ERROR]] * row[columns["seeds"]] ** 0.5)
            for label in (str(row[0]), table.name):
                rows.setdefault(label, []).extend(cells)
    for family, rows in families.items():
        found[f"report/{family}"] = list(rows.items())
    said = [claim.number for one in build.sections(load(RESULTS)) for claim in one.claims]
    found["report/claims"] = [(text, [number.value for number in numbers(text)]) for text in said]
    return found


def units(number: Number) -> tuple[float, ...]:
    """Return the factors by which results may be stored: per cent or MiB instead of one."""
    if number.text.endswith(("%", "points")):
        return (1.0, 0.01)
    return (1.0, 1e6) if number.text.endswith("MB") else (1.0, 2.0**20) if number.text.endswith("MiB") else (1.0, 100.0)


def has(values: Sequence[float], number: Number) -> bool:
    return any(number.fits(value * unit) for value in values for unit in units(number))


def where(wanted: Sequence[Number], sources: Sequence[str]) -> str:
    """Return the first file, and the record or row in it, that has all of these numbers; "" if there is none."""
    for name, rows in groups().items():
        if name.startswith(tuple(sources)):
            for label, values in rows:
                if all(has(values, number) for number in wanted):
                    return f"{name}: {label}"
    return ""


def lines(page: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page that are not code."""
    is_code = False
    for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield number, line


@cache
def printed(page: str) -> list[float]:
    """Return the numbers in the tables of a page."""
    return [number.value for _, line in lines(page) if line.lstrip().startswith("|") for number in numbers(line)]


def found_in(page: str) -> Iterator[tuple[int, list[Number], str]]:
    """Yield line, numbers and place of every row of a table, and of every measured number in prose."""
    for at, line in lines(page):
        is_row = line.lstrip().startswith("|")
        wanted = [
            one
            for one in numbers(line.partition("|")[2].partition("|")[2] if is_row else line)
            if one.text not in KNOWN.get(page, {})
        ]
        if is_row:
            if wanted:
                yield at, wanted, where(wanted, SOURCES[page])
            continue
        linked = {f"docs/{name}.md" for name in re.findall(r"\((?:docs/)?([\w-]+)\.md", line)} & SOURCES.keys()
        for number in wanted:
            tables = [one for one in (page, *sorted(linked)) if has(printed(one), number)]
            yield at, [number], f"tables of {tables[0]}" if tables else where([number], SOURCES[page])


if __name__ == "__main__":
    for page in SOURCES:
        for at, wanted, place in found_in(page):
            print(f"{page}:{at}: {', '.join(one.text for one in wanted)}: {place or 'NOT FOUND'}")
