"""Shows a report: drawn by rich in a terminal if it is installed, as plain Markdown everywhere else."""

import sys
from importlib.util import find_spec


def show(report: str) -> None:
    if sys.stdout.isatty() and find_spec("rich") is not None:
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(report))
    else:
        print(report)
