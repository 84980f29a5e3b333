"""Shows a report: drawn by rich in a terminal if it is installed, as plain text everywhere else; as wide as there is room."""

import sys
from importlib.util import find_spec
from shutil import get_terminal_size

from fastmax_lab.report.fit import fit


def show(report: str) -> None:
    if sys.stdout.isatty() and find_spec("rich") is not None:
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(report))
    else:
        print(fit(report, get_terminal_size().columns))
