"""The fit of text to a width: prose is wrapped, tables that are too wide are set again or in parts."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import groupby
from shutil import get_terminal_size
from textwrap import wrap

PROSE = 24
"""Cells longer than this are wrapped; shorter ones, numbers with their units among them, stay whole."""

GAP = 2


def show(report: str) -> None:
    """Print a report: by rich in a terminal if it is installed, else as plain text; as wide as there is room."""
    if sys.stdout is not None and sys.stdout.isatty() and find_spec("rich") is not None:
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(report))
    else:
        print(fit(report, get_terminal_size().columns))


def fit(report: str, width: int) -> str:
    """Wrap lines to at most `width` characters; keep what fits already, Markdown tables too."""
    parts = []
    for is_table, group in groupby(report.splitlines(), lambda line: line.startswith("|")):
        lines = list(group)
        if max(map(len, lines)) <= width:
            parts += lines
        elif is_table:
            parts += _table(lines, width)
        else:
            parts += [part for line in lines for part in _wrapped(line, width)]
    return "\n".join(parts)


@dataclass(frozen=True)
class _Column:
    cells: tuple[str, ...]  # the header is the first

    @property
    def least(self) -> int:
        """Return the least width, with the header in words and prose wrapped."""
        return max(
            _longest_word(cell) if i == 0 or len(cell) > PROSE else len(cell) for i, cell in enumerate(self.cells)
        )

    @property
    def whole(self) -> int:
        """Return the width with the header in words and nothing else wrapped."""
        return max(self.least, *map(len, self.cells[1:]))

    @property
    def is_prose(self) -> bool:
        return any(len(cell) > PROSE for cell in self.cells[1:])


def _table(lines: Sequence[str], width: int) -> Iterator[str]:
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    first, *others = (_Column(cells) for cells in zip(header, *rows, strict=True))
    while others:
        group = [first, others.pop(0)]
        while others and sum(min(c.least, width // 2) + GAP for c in [*group, others[0]]) - GAP <= width:
            group.append(others.pop(0))
        yield from _set(group, width)
        if others:
            yield ""


def _set(columns: Sequence[_Column], width: int) -> Iterator[str]:
    widths = [min(column.least, width // 2) for column in columns]
    for i, column in enumerate(columns):  # what room there is, from the left
        room = width - sum(widths) - GAP * (len(widths) - 1)
        widths[i] += max(0, min(room, column.whole - widths[i]))
    for number, cells in enumerate(zip(*(column.cells for column in columns), strict=True)):
        wrapped = [_wrapped(cell, w) for cell, w in zip(cells, widths, strict=True)]
        for line in range(max(map(len, wrapped))):
            parts = [lines[line] if line < len(lines) else "" for lines in wrapped]
            padded = [
                part.ljust(w) if i == 0 or column.is_prose else part.rjust(w)
                for i, (part, w, column) in enumerate(zip(parts, widths, columns, strict=True))
            ]
            yield (" " * GAP).join(padded).rstrip()
        if number == 0:
            yield (" " * GAP).join("-" * w for w in widths)


def _wrapped(text: str, width: int) -> list[str]:
    return wrap(text, width, break_on_hyphens=False) or [""]


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)
