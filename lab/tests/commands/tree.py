"""The commands as a tree: every parser that has no commands below it, and what each of its options takes."""

import argparse
from collections.abc import Iterator

from fastmax_lab import cli


def leaves(
    parser: argparse.ArgumentParser | None = None, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    parser = cli.parser() if parser is None else parser
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield path, parser
    for action in below:
        for name, inner in action.choices.items():
            yield from leaves(inner, (*path, name))
