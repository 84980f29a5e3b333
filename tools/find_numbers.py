"""The places of the measured and computed numbers in README and docs: in lab/results, or in what the code computes.

python -m tools.find_numbers            # page, line, numbers, and the file and row, or the computation, that has them

A number in prose counts if it has a unit, a spread or two decimals; in the row of a table also if it has one decimal or
three digits. A row is found if one row of the tables that the lab makes of its results has all its numbers, rounded as
they are printed. A number in prose is found in a table of its page, or of a page that is linked beside it, or where `PROSE`
says.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from tools import compute_numbers

from fastmax_lab.measurements import read
from fastmax_lab.report import core, decay, decode, distributed, dropout, generate, kernel, long, narrow, values
from fastmax_lab.report.page import build
from fastmax_lab.report.page.results import load

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "lab" / "results"
BENCH = ("bench/",)
SOURCES: dict[str, dict[str, tuple[str, ...]]] = {
    "README.md": {"": BENCH},
    "docs/choosing.md": {"": ("computed/features by order", "computed/costs")},
    "docs/convert.md": {
        "stories260K": ("convert/stories260k",), "MiniLM": ("convert/minilm",), "SmolLM2": ("convert/smollm2",),
        "LoRA on the converted model": ("convert/lora",),
    },
    "docs/design.md": {"": ("computed/longest dense",)},
    "docs/distributed.md": {"": ("bench/distributed",)},
    "docs/errata.md": {"": ("computed/errata",)},
    "docs/examples.md": {"Spoken digits": ("computed/audio",)},
    "docs/gpu.md": {
        "GPUs": ("computed/gpu estimates",), "How fast could it be": ("computed/gpu roofline",),
        "Precision": ("computed/gpu errors, triton",), "What the compiler says": ("computed/gpu kernels",),
    },
    "docs/learning.md": {
        "Language": ("report/language", "language"), "Recall": ("report/recall", "recall"), "Limits": ("recall",),
    },
    "docs/lra.md": {
        "Accuracy at full length": ("report/lra-accuracy", "computed/lra jumps"),
        "In equal time": ("report/lra-clock", "report/lra-accuracy-longer", "report/lra-accuracy"),
        "Time to an accuracy": ("report/lra-time-to-accuracy",),
        "The other attentions": ("report/lra-accuracy",),
        "How it was measured": ("lra",),
        "Rates tuned alike": ("report/lra-settings",),
        "Accuracy on shorter sequences": ("lra-shorter", "computed/lra jumps"),
        "Speed": ("report/lra-ratio", "report/lra-memory"),
        "The encoder's layers": ("lra-layers",),
    },
    "docs/performance-data.md": {"": (*BENCH, "computed/bf16")},
    "docs/performance.md": {"Break-even": ("computed/longest dense",), "": BENCH},
    "docs/reproduction.md": {"The claims": ("report/claims",)},
    "docs/transformers.md": {"": ("bench/generate",)},
}  # fmt: skip
"""The files that the tables of a section rest on, by the beginning of their names, "" for all other sections of a page.

"report" has the tables of the report, "computed" those of `compute_numbers`. No other page has a table of results.
"""
UNORDERED = ("report/lra-accuracy", "report/lra-clock", "report/lra-time-to-accuracy", "report/lra-ratio",
             "lra-shorter", "convert/smollm2", "computed/lra jumps")  # fmt: skip
"""Sources that have the numbers of a row in another order than the docs."""
CHOOSING = dict.fromkeys(("4.5 MB", "0.37 MB"), "computed/costs")
CHOOSING |= {"1.14 times": "bench/decay"}
CHOOSING |= dict.fromkeys(("2.048 ±", "0.012", "2.071 ±", "0.031"), "report/language-shakespeare-128")
CHOOSING |= dict.fromkeys(("63.60", "62.65", "25.20", "24.00"), "report/lra-accuracy")
CHOOSING |= dict.fromkeys(("31.9 ±", "0.3", "31.7 ±", "28.4 ±", "0.4", "28.0 ±", "1.2"), "report/lra-settings")
PROSE: dict[str, dict[str, str]] = {
    "README.md": {"4.5 MB": "computed/costs", "0.37 MB": "computed/costs"},
    "docs/choosing.md": CHOOSING,
    "docs/convert.md": {
        "19 GB": "computed/costs", "56 MB": "computed/costs", "4.27": "convert/stories260k", "4.35": "convert/stories260k",
        "5.12": "convert/stories260k",
        "39.7": "convert/smollm2-measured", "27.3": "convert/smollm2-measured",
    },
    "docs/distributed.md": {"4.46 MB": "computed/costs", "10 µs": "computed/limits", "100 µs": "computed/limits"},
    "docs/dropout.md": dict.fromkeys(("1.07x", "1.28x", "1.50x", "1.08x"), "bench/dropout"),
    "docs/errata.md": {
        "0.2704": "computed/errata", "73.5 %": "report/dropout-as-released", "76.4 %": "report/dropout-paper-scale",
        "1.316": "report/dropout-as-released", "1.313": "report/dropout-as-released",
        "1.70": "report/order-one-shakespeare", "0.48": "report/order-one-mnist", "0.24": "report/order-one-mnist",
    },
    "docs/gpu.md": {
        "5 us": "computed/gpu estimates", "80 %": "computed/gpu estimates", "50 %": "computed/gpu estimates",
        "17 GB": "computed/costs",
        "3.4 times": "computed/gpu errors, batched", "0.29 ms": "computed/gpu kernels", "0.51 ms": "computed/gpu kernels",
        "512 MB": "computed/limits",
    },
    "docs/learning.md": {"90.8 %": "recall", "7.3 %": "recall", "600": "language", "800": "recall",
        "1.27": "report/findings", "1.10": "report/findings",
    },
    "docs/lra.md": {
        "8.1 ±": "report/claims", "8.1 points": "report/claims", "1.1 points": "report/claims",
        "3.9 ±": "computed/lra leads", "2.1 points": "computed/lra leads",
        "3 points": "report/lra-gap", "64 GB": "computed/limits", "2.05": "computed/lra jumps", "2.26": "computed/lra jumps",
        "0.29": "computed/lra paces", "0.14": "computed/lra paces", "10 times": "computed/lra paces",
        "42 times": "computed/lra paces",
        "1.02": "report/lra-layers", "58 %": "lra-layers", "24 %": "lra-layers",
        "11 %": "lra-layers",
    },
    "docs/performance.md": {"4.5 MB": "computed/costs", "0.56": "bench/kernel-16384"},
    "docs/transformers.md": dict.fromkeys(("1.05x", "594 MB", "6.3 MB"), "bench/generate"),
}  # fmt: skip
"""The places of numbers in prose that are in no table of a page."""
KNOWN: dict[str, dict[str, str]] = {
    "CONTRIBUTING.md": {"95 %": "a limit in the Makefile", "60 s": "of an example of an error message"},
    "docs/convert.md": {"84 MB": "a package's size", "93 MB": "a package's size"},
    "docs/errata.md": {"12345.678": "an example"},
    "docs/gpu.md": {"1.5 GB": "a limit in tests/backends/test_triton_offline.py"},
    "docs/install.md": dict.fromkeys(("3.11", "2.10", "5.20"), "a version"),
    "docs/learning.md": {"5 %": "a setting", "0.1": "a setting", "99.5 %": "a setting"},
}
"""Numbers that are no results."""
SUMMARIES = {
    "core": core, "decay": decay, "decode": decode, "distributed": distributed, "dropout": dropout, "generate": generate,
    "kernel": kernel, "long": long, "narrow": narrow, "values": values,
}  # fmt: skip
ERROR = "its standard error"
SKIPPED = frozenset(("machine", "config", "rounds", "curve"))
"""Parts of a record that no page prints."""
UNITS = {"ms": 1e-3, "s": 1.0, "µs": 1e-6, "us": 1e-6, "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KB": 2**10, "KiB": 2**10,
         "MiB": 2**20, "%": 0.01, "points": 0.01, "x": 1.0, "times": 1.0, "nats": 1.0, "±": 1.0, "": 1.0}  # fmt: skip
KINDS = {
    "s": ("ms", "s", "µs", "us"),
    "B": ("B", "kB", "KB", "MB", "GB", "KiB", "MiB"),
    "%": ("%", "points"),
    "x": ("x", "times"),
}
KIND = {unit: kind for kind, units in KINDS.items() for unit in units}
NUMBER = re.compile(
    r"(?<![\w.,/^-])(?P<sign>[-+])?(?P<digits>\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?)"
    r"(?: ?(?P<unit>ms|s|µs|us|[kKMG]B|[KM]iB|B|%|points|x|times|nats|±))?(?![\w/]|[.,]\d)"
)


FACTORS = {
    ("", ""): (1.0, 100.0), ("%", ""): (1.0, 0.01), ("B", ""): (1.0, 1e6, 2.0**20), ("", "%"): (100.0,), ("", "s"): (1e3,),
    ("", "B"): (1.0, 1e-6),
}  # fmt: skip
"""Factors from a result to what is printed, by their kinds. A unit may stand in the header of a column."""


NO_NUMBERS = re.compile(
    r"`[^`]*`|\]\([^)]*\)|\$[^$]*\$|arXiv:\S+|(?:Python|PyTorch|transformers|to) \d\.\d+\b(?! ?[%x])"
    r"|\d{4}-\d\d-\d\d|\d+\.\d+\.\d+\S*"
)
"""Code, links, formulas, versions and dates."""


@dataclass(frozen=True)
class Number:
    """A number as it is printed: its value in units of seconds, bytes or one, half of its last digit, and its kind."""

    text: str
    value: float
    tolerance: float = 0.0
    kind: str = ""

    def is_in(self, found: Sequence["Number"]) -> bool:
        return any(
            abs(abs(other.value) * factor - self.value) <= self.tolerance * 1.02
            for other in found
            if other.kind == self.kind or "" in (other.kind, self.kind)
            for factor in FACTORS.get((self.kind, other.kind), (1.0,))
        )


Rows = list[tuple[str, list[Number]]]
"""Numbers that belong together, by what they are of."""


def numbers(text: str, *, every: bool = False, in_row: bool = False) -> Iterator[Number]:
    """Yield the measured numbers of a text, or every number. In a row also fractions and three digits count."""
    for found in NUMBER.finditer(NO_NUMBERS.sub(" ", text)):
        unit, digits = found["unit"] or "", found["digits"].replace(",", "")
        after_spread = found.string[: found.start()].endswith("± ")
        mantissa, _, exponent = digits.partition("e")
        decimals = len(mantissa.partition(".")[2])
        has_digits = decimals >= 2 or (in_row and ("." in digits or exponent or len(mantissa) >= 3))
        if not (every or unit or after_spread or has_digits):
            continue
        last = 10.0 ** (int(exponent or 0) - decimals)
        yield Number(found[0].strip(), float(digits) * UNITS[unit], 0.5 * last * UNITS[unit], KIND.get(unit, ""))


def leaves(value: Any) -> Iterator[Number]:
    """Yield the numbers of a measurement. Long lists, such as curves and maps, are left out."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return
    if isinstance(value, int | float):
        yield Number(str(value), float(value))
    elif isinstance(value, dict):
        for key, one in value.items():
            if key not in SKIPPED:
                yield from leaves(one)
    elif len(value) <= 64:
        for one in value:
            yield from leaves(one)


def plain(cell: str) -> str:
    """Return a label without the marks of Markdown."""
    return re.sub(r"[*`]|, 1/√D$", "", cell.strip()).lower()


def rows_of(text: str) -> Rows:
    """Return the numbers of the tables and lines that the lab prints, those of rows of the same name together."""
    rows: dict[str, list[Number]] = {}
    for line in text.splitlines():
        label = line.split("|")[1].strip() if line.startswith("|") else line[:40]
        rows.setdefault(label, []).extend(numbers(line, every=True))
    return list(rows.items())


@cache
def groups() -> dict[str, Rows]:
    """Return by file the numbers that belong together: of a row of a benchmark, of a record, of a row of the report."""
    found = compute_numbers.tables()
    groups = {f"computed/{name}": rows_of(text) for name, text in found.items()}
    for path in sorted(RESULTS.rglob("*.jsonl")):
        name = path.relative_to(RESULTS).with_suffix("").as_posix()
        kind = name.removeprefix("bench/").partition("-")[0]
        if name.startswith("bench/") and kind in SUMMARIES:
            groups[name] = rows_of(SUMMARIES[kind].summary(read(path)))
        else:
            rows: dict[str, list[Number]] = {}
            for at, line in enumerate(path.read_text().splitlines(), 1):
                record = json.loads(line)
                settings = record.get("settings", {})
                for label in (record.get("name", f"line {at}"), settings.get("attention"), settings.get("task")):
                    if label:
                        rows.setdefault(label, []).extend(leaves(record))
                for parts in record.get("values", {}).values():
                    for label, part in parts.items() if isinstance(parts, dict) else ():
                        rows.setdefault(label.partition(";")[0], []).extend(leaves(part))
                stages = record.get("cpu_seconds")
                if isinstance(stages, dict):
                    rows[f"line {at}"].append(Number("all stages", sum(stages.values())))
            groups[name] = list(rows.items())
    sections = build.sections(load(RESULTS))
    for table in build.tables(sections):
        rows = dict(groups.get(f"report/{table.name}", []))
        columns = {name: i for i, name in enumerate(table.columns)}
        for row in table.rows:
            cells = [Number(str(cell), float(cell)) for cell in row[1:] if isinstance(cell, int | float)]
            cells += [number for cell in row[1:] if isinstance(cell, str) for number in numbers(cell, every=True)]
            if ERROR in columns and row[columns[ERROR]] is not None:  # the docs have the spread of the seeds
                cells.append(Number("spread", row[columns[ERROR]] * row[columns["seeds"]] ** 0.5))
            rows.setdefault(str(row[0]), []).extend(cells)
        groups[f"report/{table.name}"] = list(rows.items())
    claims = [claim.number for section in sections for claim in section.claims]
    findings = [finding.text for section in sections for block in section.blocks for finding in block.findings]
    for name, texts in (("claims", claims), ("findings", findings)):
        groups[f"report/{name}"] = [(text, list(numbers(text, every=True))) for text in texts]
    return groups


def where(wanted: Sequence[Number], sources: Sequence[str], label: str = "") -> str:
    """Return the first file, and the row in it, that has all of these numbers; "" if there is none.

    If there are rows of this label, only they count, one by one or all together.
    """
    for source in sources:
        rows = [(name, *row) for name, rows in groups().items() if name.startswith(source) for row in rows]
        named = [row for row in rows if plain(row[1]) == plain(label) != ""]
        if named:
            named.append((f"{source} and others", label.strip(), [one for _, _, found in named for one in found]))
        for name, of, found in named or rows:
            left = found if source in UNORDERED else iter(found)  # an iterator goes on behind what it has found
            if all(any(number.is_in([one]) for one in left) for number in wanted):
                return f"{name}: {of}"
    return ""


def lines(page: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page but code, headers of tables, and tables that a tool writes into the page."""
    text = (ROOT / page).read_text(encoding="utf-8").splitlines()
    skipped = ""  # what ends the lines that are skipped
    for number, (line, after) in enumerate(zip(text, [*text[1:], ""], strict=True), 1):
        begins = line.lstrip()
        if skipped:
            skipped = "" if begins.startswith(skipped) else skipped
        elif begins.startswith(("```", "<!-- written by")):
            skipped = "```" if begins.startswith("```") else "<!-- end"
        elif not re.match(r"\s*\|[\s:|-]+$", after):
            yield number, line


@cache
def printed(page: str) -> list[Number]:
    """Return the numbers in the tables of a page."""
    rows = [line for _, line in lines(page) if line.lstrip().startswith("|")]
    return [number for line in rows for number in numbers(line, in_row=True)]


def pages() -> list[str]:
    """Return all pages that people read."""
    return [
        "README.md",
        "lab/README.md",
        "CONTRIBUTING.md",
        *(str(x.relative_to(ROOT)) for x in sorted(ROOT.glob("docs/**/*.md"))),
    ]


@dataclass(frozen=True)
class Line:
    """A line of a page with its number, the heading above it, and the pages that its paragraph links to."""

    at: int
    text: str
    heading: str
    linked: tuple[str, ...]


def lines_of(page: str) -> Iterator[Line]:
    heading = ""
    for _, block in groupby(lines(page), key=lambda one: not one[1].strip()):
        paragraph = list(block)
        names = re.findall(r"\((?:docs/)?([\w-]+)\.md", " ".join(text for _, text in paragraph))
        linked = tuple(sorted({f"docs/{name}.md" for name in names} & SOURCES.keys()))
        for at, text in paragraph:
            heading = text.lstrip("#").strip() if text.startswith("#") else heading
            yield Line(at, text, heading, linked)


def found_in(page: str) -> Iterator[tuple[int, list[Number], str]]:
    """Yield line, numbers and place of every row of a table, and of every measured number in prose."""
    for line in lines_of(page):
        for wanted, place in found_on(page, line):
            yield line.at, wanted, place


def found_on(page: str, line: Line) -> Iterator[tuple[list[Number], str]]:
    """Yield the numbers of a line that are found together, and their place. Whole numbers count in tables of results."""
    known, prose, tables = KNOWN.get(page, {}), PROSE.get(page, {}), SOURCES.get(page, {})
    sources = tables.get(line.heading, tables.get("", ()))
    is_row = line.text.lstrip().startswith("|")
    label, _, row = line.text.partition("|")[2].partition("|") if is_row else ("", "", line.text)
    wanted = [one for one in numbers(row, in_row=is_row and sources != ()) if one.text not in known]
    together = [one for one in wanted if is_row and one.text not in prose]
    if together:
        yield together, where(together, sources, label)
    for number in wanted:
        if number.text in prose:
            yield [number], where([number], [prose[number.text]])
        elif not is_row:
            shown = [one for one in (page, *line.linked) if number.is_in(printed(one))]
            yield [number], f"tables of {shown[0]}" if shown else ""


if __name__ == "__main__":
    for page in pages():
        for at, wanted, place in found_in(page):
            print(f"{page}:{at}: {', '.join(one.text for one in wanted)}: {place or 'NOT FOUND'}")
