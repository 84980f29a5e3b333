"""Parsers whose errors are one line, and arguments that are found wrong only after parsing."""

import argparse
from typing import NoReturn


class ArgumentValueError(ValueError):
    """What the user gave cannot be: exit code 2, as for what the parser itself refuses."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; --help has the rest."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {one_line(message)}\n")


def subcommands(parser: argparse.ArgumentParser, dest: str, names: list[str]) -> "argparse._SubParsersAction[Parser]":
    """The place for commands of these names, which an error lists."""
    return parser.add_subparsers(dest=dest, required=True, metavar=f"{{{','.join(names)}}}", parser_class=Parser)


def one_line(error: object) -> str:
    return " ".join(str(error).split())
