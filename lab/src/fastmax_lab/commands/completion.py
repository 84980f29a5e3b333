"""`fastmax-lab completion bash | zsh | fish`: a script that completes the command, made from its parsers."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from fastmax_lab.commands import completion_scripts
from fastmax_lab.commands.parser import Parser, command

SHELLS = {"bash": completion_scripts.bash, "zsh": completion_scripts.zsh, "fish": completion_scripts.fish}
INSTALL = {
    "bash": "fastmax-lab completion bash > ~/.local/share/bash-completion/completions/fastmax",
    "zsh": 'fastmax-lab completion zsh > "${fpath[1]}/_fastmax"',
    "fish": "fastmax-lab completion fish > ~/.config/fish/completions/fastmax.fish",
}


@dataclass(frozen=True)
class Slot:
    """A place for values, of an option or without one: its flags, the words to offer, or that it is a "file" or "folder"."""

    flags: tuple[str, ...]
    help: str
    values: tuple[str, ...] = ()
    path: str = ""
    takes: str = ""
    """"" for a switch, "one" value, or "many"."""


@dataclass(frozen=True)
class Node:
    """A command or a group of commands: the words that lead to it, what may follow, and the options it has."""

    path: tuple[str, ...]
    commands: dict[str, str]
    options: tuple[Slot, ...]
    positional: Slot | None


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    shells = command(
        subparsers,
        "completion",
        "print a script that completes this command in a shell",
        examples=list(INSTALL.values()),
    )
    shells.add_argument("shell", choices=list(SHELLS), metavar="SHELL", help=", ".join(SHELLS))


def describe(top: Parser) -> None:
    """Once every command is there: what `fastmax-lab completion` prints."""
    (commands,) = (action for action in top._actions if isinstance(action, argparse._SubParsersAction))
    commands.choices["completion"].set_defaults(
        run=lambda options: print(SHELLS[options.shell](list(nodes(top))), end="")
    )


def nodes(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[Node]:
    """This parser and all below it."""
    below: dict[str, argparse.ArgumentParser] = {}
    commands: dict[str, str] = {}
    options, positional = [], None
    for action in parser._actions:  # argparse has no public way to look at a parser
        if isinstance(action, argparse._SubParsersAction):
            below = dict(action.choices)
            commands = {choice.dest: choice.help or "" for choice in action._choices_actions}
        elif action.option_strings:
            options.append(_slot(action))
        else:
            positional = _slot(action)
    yield Node(path, commands, tuple(options), positional)
    for name, inner in below.items():
        yield from nodes(inner, (*path, name))


def _slot(action: argparse.Action) -> Slot:
    kind = {"FILE": "file", "DIR": "folder"}.get(str(action.metavar), "")
    takes = "" if action.nargs == 0 else "many" if action.nargs in ("+", "*") else "one"
    values = tuple(map(str, action.choices or ()))
    return Slot(tuple(action.option_strings), (action.help or "").replace("%%", "%"), values, kind, takes)
