"""Completion in three shells: the words for every command as a script of cases, nothing to run when a key is pressed."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from textwrap import indent
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastmax_lab.commands.completion import Node, Slot

_BASH = """\
# bash completion of fastmax
_fastmax() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" path="" option="" word i
    for ((i = 1; i < COMP_CWORD; i++)); do
        word="${{COMP_WORDS[i]}}"
        case "$path $word" in
{enter}
        esac
        case "$path:$word" in
{begin}
            *:-*) option="" ;;
            *) [[ "$option" == *+ ]] || option="" ;;
        esac
    done
    case "$current" in -*) option="" ;; esac
    COMPREPLY=()
    case "$path:$option" in
{offer}
    esac
}}
complete -o filenames -F _fastmax fastmax
"""

_ZSH = """\
#compdef fastmax
# zsh completion of fastmax
_fastmax() {{
    local at="" option="" word i
    local -a offered
    for ((i = 2; i < CURRENT; i++)); do
        word="${{words[i]}}"
        case "$at $word" in
{enter}
        esac
        case "$at:$word" in
{begin}
            *:-*) option="" ;;
            *) [[ "$option" == *+ ]] || option="" ;;
        esac
    done
    [[ "${{words[CURRENT]}}" == -* ]] && option=""
    case "$at:$option" in
{offer}
    esac
}}
if [[ "${{funcstack[1]}}" == _fastmax ]]; then
    _fastmax
else
    compdef _fastmax fastmax
fi
"""

_FISH = """\
# fish completion of fastmax
function __fastmax_at
    set -l path
    for word in (commandline -opc)[2..-1]
        switch "$path $word"
{enter}
        end
    end
    test "$path" = "$argv[1]"
end
complete -c fastmax -f
{offer}"""


def bash(nodes: Sequence[Node]) -> str:
    def offer(slot: Slot) -> str:
        if slot.path:
            return f'COMPREPLY=($(compgen {"-d" if slot.path == "folder" else "-f"} -- "$current"))'
        return f'COMPREPLY=($(compgen -W {shlex.quote(" ".join(slot.values))} -- "$current"))'

    def start(node: Node) -> str:
        own = f'COMPREPLY=($(compgen -W {shlex.quote(" ".join(_words(node)))} -- "$current"))'
        return own + "".join(f'; [[ "$current" == -* ]] || {offer(slot)}' for slot in _files(node))

    return _cased(_BASH, nodes, offer, start)


def zsh(nodes: Sequence[Node]) -> str:
    def offer(slot: Slot) -> str:
        if slot.path:
            return "_files -/" if slot.path == "folder" else "_files"
        return f"compadd -- {' '.join(map(shlex.quote, slot.values))}" if slot.values else ":"

    def start(node: Node) -> str:
        said = {**node.commands, **{flag: slot.help for slot in node.options for flag in slot.flags}}
        said |= dict.fromkeys(node.positional.values, "") if node.positional else {}
        offered = " ".join(shlex.quote(f"{word}:{text}") for word, text in said.items())
        files = "".join(f'; [[ "${{words[CURRENT]}}" == -* ]] || {offer(slot)}' for slot in _files(node))
        return f"offered=({offered}); _describe -o fastmax offered{files}"

    return _cased(_ZSH, nodes, offer, start)


def fish(nodes: Sequence[Node]) -> str:
    enter = [f"            case {shlex.quote(_joined(n.path[:-1]) + ' ' + n.path[-1])}\n"
             f"                set path {shlex.quote(_joined(n.path))}" for n in nodes if n.path]  # fmt: skip
    lines = []
    for node in nodes:
        at = f"complete -c fastmax -n {shlex.quote(f'__fastmax_at {shlex.quote(_joined(node.path))}')}"
        lines += [f"{at} -a {name} -d {shlex.quote(text)}" for name, text in node.commands.items()]
        if node.positional is not None:
            lines.append(f"{at} {_fish_values(node.positional).replace('-x ', '').replace('-r ', '')}")
        for slot in node.options:
            flags = " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in slot.flags)
            value = f" {_fish_values(slot)}" if slot.takes else ""
            lines.append(f"{at} {flags}{value} -d {shlex.quote(slot.help)}")
    return _FISH.format(enter="\n".join(enter), offer="".join(f"{line}\n" for line in lines))


def _fish_values(slot: Slot) -> str:
    if slot.path:
        return "-x -a '(__fish_complete_directories)'" if slot.path == "folder" else "-r -F"
    return f"-x -a {shlex.quote(' '.join(slot.values))}" if slot.values else "-x"


def _cased(template: str, nodes: Sequence[Node], offer: Callable[[Slot], str], start: Callable[[Node], str]) -> str:
    """bash and zsh walk the words alike: `offer` is for an option's value, `start` for what may stand anywhere."""
    enter = [f'"{_joined(node.path[:-1])} {node.path[-1]}") {_variable(template)}="{_joined(node.path)}" ;;'
             for node in nodes if node.path]  # fmt: skip
    begin = [f'{_patterns(node, slot)}) option="{slot.flags[-1]}{"+" if slot.takes == "many" else ""}" ;;'
             for node, slot in _valued(nodes)]  # fmt: skip
    offers = [f'"{_joined(node.path)}:{slot.flags[-1]}{"+" if slot.takes == "many" else ""}") {offer(slot)} ;;'
              for node, slot in _valued(nodes)]  # fmt: skip
    offers += [f'"{_joined(node.path)}:") {start(node)} ;;' for node in nodes]
    parts = {"enter": (enter, 3), "begin": (begin, 3), "offer": (offers, 2)}
    return template.format(**{name: indent("\n".join(lines), "    " * deep) for name, (lines, deep) in parts.items()})


def _variable(template: str) -> str:
    return "at" if template is _ZSH else "path"  # zsh ties `path` to $PATH


def _patterns(node: Node, slot: Slot) -> str:
    return " | ".join(f'"{_joined(node.path)}:{flag}"' for flag in slot.flags)


def _valued(nodes: Sequence[Node]) -> Iterator[tuple[Node, Slot]]:
    return ((node, slot) for node in nodes for slot in node.options if slot.takes)


def _words(node: Node) -> list[str]:
    flags = [flag for slot in node.options for flag in slot.flags]
    return [*node.commands, *(node.positional.values if node.positional else ()), *flags]


def _files(node: Node) -> list[Slot]:
    """The place of a file or folder that is no option's, if there is one."""
    return [node.positional] if node.positional is not None and node.positional.path else []


def _joined(path: Sequence[str]) -> str:
    return "".join(f" {word}" for word in path)
