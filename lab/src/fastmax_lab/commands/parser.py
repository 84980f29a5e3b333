"""Parsers whose errors are one line and whose help has examples, and arguments that are found wrong only after parsing."""

import argparse
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn


class ArgumentValueError(ValueError):
    """What the user gave cannot be: exit code 2, as for what the parser itself refuses."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; --help has the rest. Options are written out: an abbreviation would change its meaning
    with the next option that begins alike."""

    def __init__(
        self, *, examples: Sequence[str] = (), **options: Any
    ) -> None:  # those of argparse, which makes subparsers
        super().__init__(**{"allow_abbrev": False, **options})
        self.examples = examples

    def format_help(self) -> str:
        lines = "".join(f"  {example}\n" for example in self.examples)
        return super().format_help() + (f"\nexamples:\n{lines}" if lines else "")

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {one_line(message)}\n")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """The parser that does not know an argument says so; argparse would leave it to the outermost one."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            near = get_close_matches(unknown[0].partition("=")[0], self._option_string_actions, 1)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{f' (did you mean {near[0]}?)' if near else ''}")
        for action in self._actions:  # argparse takes "--option=--" for a list of nothing
            if action.option_strings and action.nargs is None and isinstance(getattr(found, action.dest, None), list):
                self.error(f"argument {action.option_strings[-1]}: expected one argument")
        return found, unknown


def subcommands(parser: argparse.ArgumentParser, dest: str, names: list[str]) -> "argparse._SubParsersAction[Parser]":
    """The place for commands of these names, which an error lists."""
    return parser.add_subparsers(dest=dest, required=True, metavar=f"{{{','.join(names)}}}", parser_class=Parser)


def command(
    subparsers: "argparse._SubParsersAction[Parser]", name: str, text: str, *, examples: Sequence[str] = ()
) -> Parser:
    """A command: what the list of commands says of it stands at the head of its own help too."""
    return subparsers.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", examples=examples)


def one_line(error: object) -> str:
    return " ".join(str(error).split())
